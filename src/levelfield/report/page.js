// The page: what its reader asks → a view of the results → tables and charts.

const WIDE = matchMedia("(min-width: 70rem)");
const NAMED = 8;  // optimizers in the ranking below the controls
const RANGE_DIGITS = 3;
const POLLING = 2000, RESTING = 120, SLICE = 12;  // milliseconds

class Page {
  constructor(data, asked = {}) {
    this.data = data;
    this.asked = { ...this.defaults(), ...asked };
    this.charts = selectAll("[data-panel]").map(place => new Chart(place, data.panels[place.dataset.panel], this));
    this.sections = selectAll("[data-figure]").filter(section => LIVE.has(section.dataset.figure))
      .map(section => ({ section, name: section.dataset.figure, figure: LIVE.get(section.dataset.figure) }));
    this.tables = selectAll("table.sortable").map(table => new SortableTable(table));
    this.outcomes = this.tables.find(({ table }) => table.id === "outcome-table");
    this.listen();
    this.restore();
    this.update();
    this.watch();
    this.drawRest();
  }

  /** What the study asks. */
  defaults() {
    const { k, select, report, optimizers } = this.data;
    return { k, select, report, ranges: optimizers.map(({ axes }) => axes.map(() => null)) };
  }

  listen() {
    const { asked } = this;
    const on = (id, event, change) =>
      select(id).addEventListener(event, ({ target }) => { change(target); this.updateSoon(); });
    on("#k", "input", input => { asked.k = Number(input.value); });
    on("#select", "change", input => {
      // A metric that selects is optimistic, so it is not also the one that is reported.
      if (asked.report === Number(input.value)) select("#report").value = asked.report = asked.select;
      asked.select = Number(input.value);
    });
    on("#report", "change", input => { asked.report = Number(input.value); });
    on("#reset", "click", () => {
      Object.assign(asked, this.defaults());
      this.charts.forEach(chart => chart.redraw());
      this.restore();
    });
    for (const { section, figure } of this.sections) figure.listen?.(this, section);
  }

  /** Sets the controls to what is asked. */
  restore() {
    select("#k").value = this.asked.k;
    select("#select").value = this.asked.select;
    select("#report").value = this.asked.report;
    for (const { section, figure } of this.sections) figure.restore?.(this, section);
  }

  /** Keeps a part of an optimizer's axis: [low, high], the numbers of choices, or null for all of it. */
  narrow(optimizer, axis, range) {
    this.asked.ranges[optimizer][axis] = range;
    this.restore();
    this.updateSoon();
  }

  /** Several events lead to one update. */
  updateSoon() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = null; this.update(); });
  }

  update() {
    const { k, select: selected, report, ranges } = this.asked, question = JSON.stringify([k, selected, ranges]);
    if (question === this.question) this.view.report = report;
    else this.ask(question);
    const { view } = this;
    select("#k-shown").textContent = k;
    select("#reset").hidden = view.sameTrials && report === this.data.report;
    selectAll(".as-run").forEach(note => { note.hidden = view.sameTrials; });
    select("#answer").classList.toggle("moved", !view.sameTrials);
    fillOutcomes(this.outcomes, view);
    select("#ranking").textContent = rankingText(view);
    select("#narrowed").textContent = narrowedText(view, ranges);
    this.updateSections();
    this.tables.forEach(table => table.sort());
    this.settled = Promise.all(this.charts.filter(chart => chart.live).map(chart => chart.update()));
  }

  /** Takes another view of the results. Its tests follow when the reader rests. */
  ask(question) {
    const view = viewOf(this.data, this.asked, this.view);
    if (view.sameTrials) view.tests = this.data.tests;
    Object.assign(this, { question, view });
    this.prepared = new Map(this.sections.map(({ name, figure }) =>
      [name, figure.prepare(view, this.data.figures.get(name))]));
    this.tested = view.tests ? Promise.resolve() : this.test(view);
  }

  /** Tests a view in slices, so that the page keeps responding; gives up if the reader asks something else. */
  async test(view) {
    const isWanted = () => this.view === view && !this.isStopped;
    await pause(RESTING);
    const tests = this.tests(view);
    for (let done = false; !done;) {
      for (const start = performance.now(); !done && performance.now() - start < SLICE;) {
        if (!isWanted()) return;
        ({ done } = tests.next());
      }
      await pause(0);
    }
    if (!isWanted()) return;
    this.updateSections();
    await Promise.all(this.charts.filter(chart => chart.live?.test).map(chart => chart.update()));
  }

  * tests(view) {
    view.tests = yield* testsOf(view);
    for (const { name, figure } of this.sections.filter(({ figure }) => figure.test))
      this.prepared.set(name, yield* figure.test(view, this.data.figures.get(name)));
  }

  /** Stops what it may still be doing. */
  stop() {
    this.isStopped = true;
    cancelAnimationFrame(this.waiting);
  }

  updateSections() {
    select("#separated").textContent = claimsText(this.view, this.view.tests?.best, BEATS);
    for (const { section, name, figure } of this.sections) figure.update?.(this.view, section, this.prepared.get(name));
  }

  /** Draws charts when they come into sight, and marks the section in sight in the contents. */
  watch() {
    const charts = new Map(this.charts.map(chart => [chart.place, chart]));
    const drawer = new IntersectionObserver(entries => entries.forEach(({ target, isIntersecting }) => {
      const chart = charts.get(target);
      chart.inSight = isIntersecting;
      if (isIntersecting) chart.show();
    }), { rootMargin: "400px" });
    this.charts.forEach(chart => drawer.observe(chart.place));

    const links = new Map(selectAll("nav a").map(link => [link.hash.slice(1), link]));
    const marker = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
      links.forEach((link, id) => { link.ariaCurrent = id === entry.target.id ? "true" : null; });
    }), { rootMargin: "-30% 0px -70% 0px" });
    selectAll("main section[id]").forEach(section => marker.observe(section));

    const contents = select("nav details");
    contents.open = WIDE.matches;
    WIDE.onchange = () => { contents.open = WIDE.matches; };
    links.forEach(link => link.addEventListener("click", () => { contents.open = WIDE.matches; }));
  }

  /** Draws the charts that are not in sight when the browser has time: those who print want all of them. */
  async drawRest() {
    for (const chart of this.charts) {
      await new Promise(window.requestIdleCallback ?? setTimeout);
      if (this.isStopped) return;
      await chart.show();
    }
  }

  showAll() { return Promise.all(this.charts.map(chart => chart.show())); }
}

function rankingText({ k, select: selected, metrics, ranking, shown, comparable }) {
  const metric = metrics[selected];
  const ranked = ranking.filter(({ optimizer }) => comparable.includes(optimizer))
    .map(({ optimizer, median }, i) => `${i + 1}.\u00a0${optimizer.name} ${formatMetric(metric, median)}`);
  const more = ranked.length > NAMED ? [`… and ${ranked.length - NAMED} more`] : [];
  const few = shown.filter(optimizer => !comparable.includes(optimizer))
    .map(({ name, pool }) => `${name} (${pool.length})`);
  const left = few.length ? `. Not ranked, because they have fewer than ${k} trials: ${few.join(", ")}` : "";
  const listed = [...ranked.slice(0, NAMED), ...more].join("   ") || "no trials";
  return `Median best of ${k} by ${metric.name}: ${listed}${left}`;
}

function narrowedText({ k, optimizers }, ranges) {
  const rangeText = (range, { title, choices }) => `${title} in `
    + (choices ? `{${range.map(i => choices[i]).join(", ")}}` : range.map(end => formatGeneral(end, RANGE_DIGITS)).join(" … "));
  return optimizers.filter((_, i) => ranges[i].some(range => range)).map(({ name, number, axes, pool }) => {
    const kept = ranges[number].flatMap((range, axis) => (range ? [rangeText(range, axes[axis])] : []));
    const few = pool.length < k ? `, fewer than K = ${formatCount(k)}` : "";
    const left = pool.length ? `${formatCount(pool.length)} of its feasible trials are left${few}` : "none of its feasible trials is left";
    return `${name} with ${kept.join(", ")}: ${left}.`;
  }).join(" ");
}

/** Follows a study that is running: takes over the page that the server has for new trials. */
async function follow() {
  for (;;) {
    await pause(POLLING);
    try {
      const state = await (await fetch("state")).json();
      for (const bar of selectAll("#progress progress")) bar.value = state.optimizers[bar.dataset.optimizer].feasible;
      select("#offline").hidden = true;
      if (state.version === window.page.data.version) continue;
      const answer = await fetch("./");
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      select("#layout").replaceWith(select("#layout", fresh));
      select("#data").textContent = select("#data", fresh).textContent;
      window.page.stop();
      window.page = new Page(await pageData(), window.page.asked);
    } catch {
      select("#offline").hidden = false;
    }
  }
}

const pageData = () => decoded(JSON.parse(select("#data").textContent));

window.page = new Page(await pageData());
window.addEventListener("beforeprint", () => {
  selectAll("main details").forEach(details => { details.open = true; });
  window.page.showAll();
});
if (window.page.data.version) follow();
