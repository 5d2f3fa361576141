// The page: what its reader asks (K, metrics, parts of the search spaces) → outcomes → tables and charts.

// ---------------------------------------------------------------------------- numbers as text, as in words.py

/** The value, unless it lies halfway between two of so many decimals: then the even one, as Python rounds. */
function even(value, decimals) {
  const halfway = decimals < 0 ? Math.abs(value) / 10 ** -decimals % 1 === 0.5
    : Math.abs(value) * 2 ** (decimals + 1) % 2 === 1;
  return halfway ? 2 * Math.round(value * 10 ** decimals / 2) / 10 ** decimals : value;
}

function general(value, digits) {  // C's %.{digits}g
  if (value === 0) return "0";
  value = even(value, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e").map(Number);
  if (exponent >= -4 && exponent < digits) return String(Number(value.toPrecision(digits)));
  const sign = exponent < 0 ? "-" : "+";
  return `${mantissa}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

const isShare = metric => /^[^_]*_(error|accuracy)$/.test(metric);

function showMetric(metric, value) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return `${value > 0 ? "inf" : "-inf"}${isShare(metric) ? "%" : ""}`;
  return isShare(metric) ? `${even(100 * value, 2).toFixed(2)}%` : general(value, 4);
}

const showShare = value => (Number.isNaN(value) ? "–" : `${even(100 * value, 0).toFixed(0)}%`);
const showSteps = value => Math.round(even(value, 0)).toLocaleString("en-US");

// ---------------------------------------------------------------------------- what the reader asks for

/** Outcomes of the trials inside the asked ranges: the counterpart of Comparison.at and .narrowed. */
function view(data, asked) {
  const optimizers = data.optimizers.map((about, number) => {
    const ranges = Object.entries(asked.ranges[number] ?? {});
    const inside = i => ranges.every(([axis, range]) => holds(about.x[axis][i], range));
    const tried = about.trial.map((_, i) => i).filter(inside);
    const pool = tried.filter(i => about.feasible[i]);
    const sign = metric => (data.metrics[metric] === "maximize" ? -1 : 1);
    const values = metric => pool.map(i => about.metrics[metric][i]);
    const ranked = metric => values(metric).map(v => (Number.isFinite(v) ? sign(metric) * v : Infinity));
    const spent = tried.reduce((sum, i) => sum + about.last[i], 0);
    const order = ranked(asked.select);
    return {
      ...about, number, tried, pool, inside, values, ranked, order,
      known: order.some(Number.isFinite),
      best: (k, report, select = asked.select) => {
        if (!ranked(select).some(Number.isFinite)) return { mean: NaN, low: NaN, high: NaN };
        const reported = values(report), chances = weights(ranked(select), k), finite = reported.map(Number.isFinite);
        const kept = finite.reduce((sum, known, i) => sum + (known ? chances[i] : 0), 0);
        const known = estimate(reported.filter((_, i) => finite[i]), chances.filter((_, i) => finite[i]));
        return { ...estimate(reported, chances), mean: kept >= 0.95 - 1e-12 ? known.mean : NaN };
      },
      cost: k => (pool.length ? (k * spent) / pool.length : NaN),
      steps: k => {
        const steps = pool.map(i => about.reached[i] ?? Infinity), chances = weights(steps, k);
        const able = pool.map((_, i) => i).filter(i => Number.isFinite(steps[i]));
        const found = estimate(able.map(i => steps[i]), able.map(i => chances[i]));
        return { ...found, probability: pool.length ? able.reduce((sum, i) => sum + chances[i], 0) : NaN };
      },
      bestTrial: () => order.reduce((best, v, at) => (v < (best < 0 ? Infinity : order[best]) ? at : best), -1),
    };
  });
  const shown = optimizers.filter(each => each.known);
  return { data, asked, optimizers, shown };
}

const holds = (value, range) => {
  const slack = 5e-6 * Math.abs(value);  // coordinates have six digits here
  return range instanceof Set ? range.has(value) : value >= range[0] - slack && value <= range[1] + slack;
};

/** For each inclusion: the general optimizer's chances, the p-value, the verdict; as taxonomy/audit.py. */
function audit({ data, asked, optimizers }) {
  const { clear, significant, permutations, enough } = data.constants;
  const pair = edge => [optimizers[edge.special].order, optimizers[edge.general].order];
  const known = edge => optimizers[edge.special].known || optimizers[edge.general].known;
  const corrected = holm(
    data.edges.map(edge => (known(edge) ? pValue(...pair(edge), asked.k, permutations, enough) : NaN)));
  return data.edges.map((edge, i) => {
    const [special, general] = pair(edge), p = corrected[i];
    const worse = probabilityBetter(special, general, asked.k), better = probabilityBetter(general, special, asked.k);
    const verdict = Number.isNaN(p) ? "unknown" : worse <= 1 - clear ? "consistent"
      : p < significant ? "violated" : "no separation";
    return { ...edge, worse, better, p, verdict };
  });
}

// ---------------------------------------------------------------------------- rows of the live charts

const finite = value => (Number.isFinite(value) ? value : null);
const columns = found => Object.fromEntries(Object.entries(found).map(([key, value]) => [key, finite(value)]));

const ROWS = {
  "outcomes:select": ({ asked, shown }) =>
    shown.map(each => ({ optimizer: each.name, ...columns(each.best(asked.k, asked.select)) })),
  "outcomes:report": ({ asked, shown }) =>
    shown.map(each => ({ optimizer: each.name, ...columns(each.best(asked.k, asked.report)) })),
  steps: ({ asked, shown }) =>
    shown.map(each => ({ optimizer: each.name, ...columns(each.steps(asked.k)) })).filter(row => row.mean !== null),
  best_of_k: ({ data, asked, shown }) =>
    shown.flatMap(each => data.ks.map(k =>
      ({ optimizer: each.name, k, cost: finite(each.cost(k)), ...columns(each.best(k, asked.select)) }))),
  beats: ({ asked, shown }) =>
    shown.flatMap(ours => shown.filter(theirs => theirs !== ours).map(theirs => {
      const chance = probabilityBetter(ours.order, theirs.order, asked.k);
      const lead = chance - probabilityBetter(theirs.order, ours.order, asked.k);
      return { ours: ours.name, theirs: theirs.name, chance, lead };
    })),
  ranks: ({ asked, shown }) => {
    const found = rankProbabilities(shown.map(each => each.order), asked.k);
    return shown.flatMap((each, i) =>
      found[i].map((chance, place) => ({ optimizer: each.name, place: place + 1, chance })));
  },
  selection: ({ data, asked, shown }) =>
    shown.flatMap(each => Object.keys(data.metrics).map(selector =>
      ({ optimizer: each.name, selector, ...columns(each.best(asked.k, asked.report, selector)) }))),
  inclusions: (now, findings) => {
    const name = number => now.data.optimizers[number].name;
    const lines = now.data.graph.lines.map(line => {
      const found = findings.find(each => each.special === line.special && each.general === line.general);
      return { ...line, inclusion: `${name(line.special)} ⊆ ${name(line.general)}`, verdict: found.verdict,
        worse: finite(found.worse), better: finite(found.better), p_value: finite(found.p) };
    });
    return [...lines, ...now.data.graph.nodes.map(node => ({ ...node, optimizer: name(node.optimizer) }))];
  },
  trials: ({ data, asked, optimizers }, number) => {
    const each = optimizers[number], values = each.metrics[asked.select];
    const maximize = data.metrics[asked.select] === "maximize";
    const border = worst(values.filter((v, i) => each.feasible[i] && Number.isFinite(v)), maximize);
    return each.trial.map((trial, i) => {
      const known = each.feasible[i] && Number.isFinite(values[i]);
      const value = known ? (maximize ? Math.max : Math.min)(values[i], border) : border;
      const x = Object.fromEntries(each.x.map((axis, j) => [`x${j}`, axis[i]]));
      return { optimizer: each.name, trial, feasible: Boolean(each.feasible[i]), kept: each.inside(i),
        value: finite(value), ...x };
    });
  },
};

/** Where to cut a metric's axis: bad trials should not flatten the good ones. */
function worst(values, maximize) {
  if (!values.length) return NaN;
  const ordered = sorted(values), n = ordered.length;
  if (maximize) return ordered[0];
  const median = (ordered[(n - 1) >> 1] + ordered[n >> 1]) / 2;
  return Math.min(ordered[n - 1], median > 0 ? 2 * median : Infinity);
}

// ---------------------------------------------------------------------------- charts

const TEXT = { labelColor: "currentColor", titleColor: "currentColor" };
const CONFIG = {
  background: null, font: "system-ui, sans-serif", view: { stroke: null }, text: { fill: "currentColor" },
  title: { color: "currentColor" }, legend: TEXT,
  axis: { ...TEXT, domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor",
    gridOpacity: 0.12, domainOpacity: 0.4, tickOpacity: 0.4 },
};

/** A chart's template for a metric, as charts.for_metric. */
function forMetric(part, words, scale) {
  if (Array.isArray(part)) return part.map(each => forMetric(each, words, scale));
  if (typeof part === "string") return Object.hasOwn(words, part) ? words[part] : part;
  if (part === null || typeof part !== "object") return part;
  const found = Object.fromEntries(Object.entries(part).map(([key, each]) => [key, forMetric(each, words, scale)]));
  if (part.title === "@metric" && found.scale) found.scale.type = scale;
  if (part.title === "@metric" && scale === "log") delete found.scale?.zero;
  return found;
}

function lowest(rows) {
  const numbers = row => ("target" in row ? [row.target] : [row.value, row.low, row.mean]);
  const drawn = rows.flatMap(numbers).filter(v => v !== null && v !== undefined);
  return drawn.reduce((least, value) => Math.min(least, value), Infinity);
}

/** Where the axis of the best of K begins and ends, as figures.cut. */
function cut(rows, upwards) {
  const means = rows.filter(row => row.k > 1 && row.mean !== null).map(row => row.mean);
  if (!means.length) return [null, null];
  return upwards ? [Math.min(...means), null] : [null, Math.max(...means)];
}

class Chart {
  constructor(place, panel) {
    Object.assign(this, { place, panel, drawn: null, form: "", visible: false });
    this.rows = panel.rows ? unpacked(panel.rows) : [];
  }

  metric(asked) {
    return { "@select": asked.select, "@report": asked.report }[this.panel.metric] ?? this.panel.metric;
  }

  /** Draw, or draw anew; a chart that nobody has seen yet waits. */
  async update(now, findings, onRange) {
    const [kind, number, axis] = this.panel.key.split(":");
    if (kind === "trials") this.rows = ROWS.trials(now, Number(number));
    else if (this.panel.key) this.rows = ROWS[this.panel.key](now, findings);
    if (!this.visible) return;
    const metric = this.metric(now.asked);
    const scale = metric && lowest(this.rows) > 0 && !isShare(metric) ? "log" : "linear";
    const [bottom, top] = cut(this.rows, now.data.metrics[metric] === "maximize");
    const words = metric && { "@metric": metric, "@format": isShare(metric) ? ".2%" : ".4~g",
      "@ticks": isShare(metric) ? "~%" : "~g", "@bottom": String(bottom), "@top": String(top) };
    const form = JSON.stringify([words, scale]);
    if (this.drawn && form === this.form) {
      const { view } = await this.drawn;
      view.data("rows", this.rows);
      return view.runAsync();
    }
    this.form = form;
    const spec = { ...(metric ? forMetric(this.panel.spec, words, scale) : this.panel.spec), width: "container",
      datasets: { rows: this.rows } };
    (await this.drawn)?.finalize();
    this.drawn = vegaEmbed(this.place, spec, { actions: false, renderer: "svg", config: CONFIG, logLevel: 1 });
    const { view } = await this.drawn;
    if (kind === "trials" && now.optimizers[number].axes[axis].kind !== "choice")
      view.addSignalListener("range", (_, value) => onRange(Number(number), Number(axis), value[`x${axis}`]));
  }
}

/** Rows that were written column by column. */
function unpacked({ columns, names }) {
  const keys = Object.keys(columns);
  const value = (key, i) => (names[key] ? names[key][columns[key][i]] : columns[key][i]);
  return (columns[keys[0]] ?? []).map((_, i) => Object.fromEntries(keys.map(key => [key, value(key, i)])));
}

// ---------------------------------------------------------------------------- tables and words

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const one = (selector, within = document) => within.querySelector(selector);

function fillTable({ data, asked, optimizers }) {
  for (const name of ["select", "report"]) all(`[data-metric=${name}]`).forEach(cell => { cell.textContent = asked[name]; });
  for (const each of optimizers) {
    const row = one(`#outcomes tr[data-optimizer="${each.number}"]`);
    const write = (key, text) => { const cell = one(`[data-cell=${key}]`, row); if (cell) cell.textContent = text; };
    for (const key of ["select", "report"]) {
      const found = each.best(asked.k, asked[key]), text = value => showMetric(asked[key], value);
      write(key, text(found.mean));
      write(`${key}-range`, Number.isNaN(found.mean) ? "" : `${text(found.low)} – ${text(found.high)}`);
    }
    if (data.target) {
      const found = each.steps(asked.k);
      write("steps", found.probability > 0 ? `${showSteps(found.mean)} (${showShare(found.probability)})` : "–");
    }
    write("trials", `${each.pool.length} of ${each.tried.length}`);
    const best = each.bestTrial();
    write("hyperparameters", best < 0 ? "" : each.hyperparameters[each.pool[best]]);
  }
}

function fillRanking({ data, asked, optimizers, shown }) {
  const sign = data.metrics[asked.select] === "maximize" ? -1 : 1;
  const means = new Map(shown.map(each => [each, each.best(asked.k, asked.select).mean]));
  const key = each => (Number.isNaN(means.get(each)) ? Infinity : sign * means.get(each));  // no number: last
  const order = [...shown].sort((a, b) => key(a) - key(b) || 0);
  const places = order.map((each, i) => `${i + 1}. ${each.name} ${showMetric(asked.select, means.get(each))}`);
  const more = places.length > 8 ? `   … and ${places.splice(8).length} more` : "";
  one("#ranking").textContent = `Best of ${asked.k} by ${asked.select}: ${(places.join("   ") || "no trials") + more}`;
  const narrowed = Object.keys(asked.ranges).filter(number => Object.keys(asked.ranges[number]).length);
  one("#narrowed").textContent = narrowed.map(number => {
    const each = optimizers[number];
    const ranges = Object.entries(asked.ranges[number]).map(([axis, range]) => `${each.axes[axis].title} in `
      + (range instanceof Set ? `{${[...range].join(", ")}}` : range.map(end => general(end, 3)).join(" … ")));
    const left = each.pool.length, few = left < asked.k ? `, fewer than K = ${asked.k}: a rough estimate` : "";
    return `What if ${each.name} had been searched with ${ranges.join(", ")}: `
      + (left ? `${left} of its trials are left${few}.` : "no feasible trial lies there.");
  }).join(" ");
  one("#reset").hidden = !narrowed.length && asked.k === data.k && asked.select === data.select && asked.report === data.report;
}

function fillAudit(findings, asIs) {
  findings.forEach((found, i) => {
    const row = one(`#audit tr[data-edge="${i}"]`);
    if (!row) return;  // there are no trials
    const write = (key, text) => { one(`[data-cell=${key}]`, row).textContent = text; };
    write("worse", showShare(found.worse));
    write("better", showShare(found.better));
    write("p", Number.isNaN(found.p) ? "–" : general(found.p, 2));
    write("verdict", found.verdict);
    const evidence = one("[data-cell=evidence]", row);
    if (evidence) evidence.hidden = !asIs || found.verdict !== "violated";
  });
}

// ---------------------------------------------------------------------------- the page

function decoded(data) {
  const number = value => (value === null ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : Math.fround(value));
  for (const each of data.optimizers)
    for (const metric of Object.keys(each.metrics)) each.metrics[metric] = each.metrics[metric].map(number);
  return data;
}

class Page {
  constructor(asked = {}) {
    const data = this.data = decoded(JSON.parse(one("#data").textContent));
    this.asked = { k: data.k, select: data.select, report: data.report, ranges: {}, ...asked };
    this.charts = all("[data-panel]").map(place => new Chart(place, data.panels[place.dataset.panel]));
    this.listen();
    this.restore();
    this.update();
    const seen = new IntersectionObserver(entries => entries.filter(each => each.isIntersecting).forEach(each => {
      seen.unobserve(each.target);
      this.show(this.charts.find(chart => chart.place === each.target));
    }), { rootMargin: "400px" });
    this.charts.forEach(chart => seen.observe(chart.place));
  }

  show(chart) {
    chart.visible = true;
    return chart.update(this.now, this.findings, (...range) => this.range(...range));
  }

  showAll() { return Promise.all(this.charts.filter(chart => !chart.visible).map(chart => this.show(chart))); }

  listen() {
    const { asked } = this;
    const on = (selector, event, then) => all(selector).forEach(each => each.addEventListener(event, () => { then(each); this.soon(); }));
    on("#k", "input", input => { asked.k = Number(input.value); });
    on("#select", "change", input => { asked.select = input.value; });
    on("#report", "change", input => { asked.report = input.value; });
    on("[data-end]", "change", input => this.typed(Number(input.dataset.optimizer), Number(input.dataset.axis)));
    on("#reset", "click", () => { Object.assign(asked, { k: this.data.k, select: this.data.select, report: this.data.report, ranges: {} }); this.restore(); this.redraw(); });
  }

  /** The controls as what is asked. */
  restore() {
    const { asked, data } = this;
    if (!one("#k")) return;
    one("#k").value = asked.k;
    one("#select").value = asked.select;
    one("#report").value = asked.report;
    all("[data-end]").forEach(input => {
      const range = asked.ranges[input.dataset.optimizer]?.[input.dataset.axis];
      const axis = data.optimizers[input.dataset.optimizer].axes[input.dataset.axis];
      if (axis.kind === "choice") input.checked = !range || range.has(axis.ends[input.dataset.end]);
      else input.value = range ? general(range[input.dataset.end === "low" ? 0 : 1], 4) : "";
    });
  }

  /** A range was dragged over a chart, or its drag ended in nothing. */
  range(number, axis, ends) {
    const ranges = this.asked.ranges[number] ??= {};
    if (ends) ranges[axis] = ends; else delete ranges[axis];
    this.restore();
    this.soon();
  }

  /** A range was typed or ticked. */
  typed(number, axis) {
    const inputs = all(`[data-end][data-optimizer="${number}"][data-axis="${axis}"]`);
    const { kind, ends } = this.data.optimizers[number].axes[axis];
    const ranges = this.asked.ranges[number] ??= {};
    if (kind === "choice") {
      const kept = inputs.filter(input => input.checked).map(input => ends[input.dataset.end]);
      if (kept.length < ends.length) ranges[axis] = new Set(kept); else delete ranges[axis];
    } else if (inputs.every(input => input.value === "")) delete ranges[axis];
    else ranges[axis] = inputs.map((input, i) => (input.value === "" ? ends[i] : Number(input.value)));
  }

  /** Many events, one update. */
  soon() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.update(); });
  }

  update() {
    const { asked, data } = this;
    const now = this.now = view(data, asked);
    if (one("#k-shown")) one("#k-shown").textContent = asked.k;
    fillTable(now);
    fillRanking(now);
    this.findings = audit(now);
    const narrowed = Object.values(asked.ranges).some(each => Object.keys(each).length);
    fillAudit(this.findings, !narrowed && asked.k === data.k && asked.select === data.select);
    this.settled = Promise.all(this.charts.filter(chart => chart.panel.key).map(chart =>
      chart.update(now, this.findings, (...range) => this.range(...range))));
  }

  /** Charts anew, to forget what was dragged over them. */
  redraw() { this.charts.forEach(chart => { chart.form = ""; }); }
}

/** A study that is running: look for finished trials, and take over what the page says then. */
async function follow(version) {
  for (;;) {
    await new Promise(resolve => setTimeout(resolve, 2000));
    try {
      const state = await (await fetch("state")).json();  // fails where the server says what is wrong
      for (const each of state.optimizers) {
        const bar = all("#progress progress").find(bar => bar.dataset.optimizer === each.optimizer);
        if (bar) bar.value = each.feasible;
      }
      one("#lost").hidden = true;
      if (state.version === version) continue;
      const answer = await fetch("./");
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      one("main").replaceWith(one("main", fresh));
      one("#data").textContent = one("#data", fresh).textContent;
      window.page = new Page(window.page.asked);
      version = window.page.data.version;
    } catch {
      one("#lost").hidden = false;
    }
  }
}

window.page = new Page();
window.addEventListener("beforeprint", () => window.page.showAll());
if (window.page.data.version) follow(window.page.data.version);
