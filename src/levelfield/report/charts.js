// Charts: specifications from Python, with slots for the metric that the reader chooses.

const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const select = (selector, within = document) => within.querySelector(selector);
const selectAll = (selector, within = document) => [...within.querySelectorAll(selector)];

/** Figures that the page recomputes: name → functions, of which only rows is required.
 *
 * prepare(view, data): what the others share, whatever metric is reported; by default, the figure's data from Python
 * *test(view, data): the same with what takes too long for prepare; runs when the reader rests, yields now and then
 * rows(view, panel, prepared): the rows of a panel
 * ends(rows, maximized, prepared): the lowest and highest value of the metric's axis, null for none
 * drawn(page, panel, vegaView): called when a panel has been drawn
 * listen(page, section), restore(page, section), update(view, section, prepared): for inputs and tables in its HTML
 */
const LIVE = new Map();
const live = (name, functions) => LIVE.set(name, { prepare: (view, data) => data, ...functions });

/** A number as charts show it, without the noise of its last digits; null if it is not finite. */
const drawnNumber = value => (Number.isFinite(value) ? Number(value.toPrecision(CONSTANTS.drawnDigits)) : null);

const estimateFields = estimate =>
  Object.fromEntries(Object.entries(estimate).map(([key, value]) => [key, drawnNumber(value)]));

/** The counterpart of interval_fields. */
const intervalFields = ({ median, low, high }) =>
  ({ median: drawnNumber(median), medianLow: drawnNumber(low), medianHigh: drawnNumber(high) });

const TEXT = { labelColor: "currentColor", titleColor: "currentColor" };
const CONFIG = {
  background: null, font: "system-ui, sans-serif", view: { stroke: null }, text: { fill: "currentColor" },
  title: { color: "currentColor" }, legend: TEXT,
  axis: {
    ...TEXT, domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor",
    gridOpacity: 0.12, domainOpacity: 0.4, tickOpacity: 0.4,
  },
};

/** The counterpart of Template.fill: null takes the slot's key away. */
function fill(spec, slots, values) {
  const filled = structuredClone(spec);
  for (const [path, word] of slots) {
    const key = path.at(-1), parent = path.slice(0, -1).reduce((part, step) => part[step], filled);
    if (values[word] === null) delete parent[key]; else parent[key] = values[word];
  }
  return filled;
}

/** The counterpart of slot_values. */
function slotValues(metric, drawnFrom, [lowest, highest]) {
  const log = drawnFrom > 0 && !metric.share;
  return {
    metric: metric.name, format: metric.format, ticks: metric.ticks,
    scale: log ? "log" : "linear", zero: log ? null : false, lowest, highest,
  };
}

/** The counterpart of packed. */
function unpacked({ columns, texts }) {
  const keys = Object.keys(columns);
  const value = (key, i) => (texts[key] ? texts[key][columns[key][i]] : columns[key][i]);
  return (columns[keys[0]] ?? []).map((_, i) => Object.fromEntries(keys.map(key => [key, value(key, i)])));
}

class Chart {
  constructor(place, panel, page) {
    Object.assign(this, { place, panel, page, inSight: false, isCurrent: false });
    Object.assign(this, { drawn: null, drawnAs: "", drawing: Promise.resolve() });
    this.computed = panel.rows ? unpacked(panel.rows) : null;
    this.live = panel.live ? LIVE.get(panel.figure) : null;
  }

  get prepared() { return this.page.prepared.get(this.panel.figure); }

  /** What it shows of the page's view, computed when it is needed. */
  get rows() { return this.computed ??= this.live.rows(this.page.view, this.panel, this.prepared); }

  /** Forgets its rows, and draws new ones if it is in sight. */
  update() {
    this.computed = null;
    this.isCurrent = false;
    return this.inSight ? this.show() : this.drawing;
  }

  /** Draws the latest rows, once it has drawn what came before. The page may do something else in between. */
  show() {
    this.drawing = this.drawing.then(() => pause(0)).then(() => this.isCurrent || this.draw());
    return this.drawing;
  }

  /** Draws into the same chart, unless its axes have changed; nothing, if it shows these rows already. */
  async draw() {
    this.isCurrent = true;
    const values = this.values(), drawnAs = JSON.stringify(values), drawnRows = JSON.stringify(this.rows);
    const rows = this.rows.map(row => ({ ...row }));  // Vega marks the objects that it is given
    const isSame = drawnRows === this.drawnRows;
    this.drawnRows = drawnRows;
    if (this.drawn && drawnAs === this.drawnAs) {
      if (isSame) return;
      const { view } = await this.drawn;
      view.data("rows", rows);
      await view.runAsync();
      return;
    }
    (await this.drawn)?.finalize();
    const spec = this.live ? fill(this.panel.spec, this.panel.slots, values) : this.panel.spec;
    this.drawnAs = drawnAs;
    this.drawn = vegaEmbed(this.place, { ...spec, width: "container", datasets: { ...spec.datasets, rows } },
      { actions: false, renderer: "svg", config: CONFIG, logLevel: 1 });
    const { view } = await this.drawn;
    this.live?.drawn?.(this.page, this.panel, view);
  }

  /** What the slots hold. */
  values() {
    if (!this.live || !this.panel.choice) return {};
    const { view } = this.page, metric = view.metrics[view[this.panel.choice]];
    const drawn = this.rows.flatMap(row => this.panel.fields.map(field => row[field] ?? NaN)).filter(Number.isFinite);
    const drawnFrom = drawn.reduce((lowest, value) => Math.min(lowest, value), drawn[0] ?? 0);
    return slotValues(metric, drawnFrom, this.live.ends?.(this.rows, metric.maximized, this.prepared) ?? [null, null]);
  }

  /** Forgets what was dragged over it. */
  redraw() { this.drawnAs = ""; }
}
