// Charts: specifications from Python, with slots for the metric that the reader chooses.

const select = (selector, within = document) => within.querySelector(selector);
const selectAll = (selector, within = document) => [...within.querySelectorAll(selector)];

/** Figures that the page recomputes: name → functions, of which only rows is required.
 *
 * prepare(view, data): what the others share, computed once per update; by default, the figure's data from Python
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
  constructor(place, panel) {
    Object.assign(this, { place, panel, drawn: null, drawnAs: "", visible: false, drawing: Promise.resolve() });
    this.live = panel.live ? LIVE.get(panel.figure) : null;
    this.rows = panel.rows ? unpacked(panel.rows) : [];
  }

  /** Recomputes the rows, and draws them if the chart has been in sight, once it has drawn what came before. */
  update(page) {
    if (this.live) this.rows = this.live.rows(page.view, this.panel, page.prepared.get(this.panel.figure));
    if (this.visible) this.drawing = this.drawing.then(() => this.draw(page));
    return this.drawing;
  }

  /** Draws the latest rows; into the same chart, unless its axes have changed. */
  async draw(page) {
    const values = this.values(page.view, page.prepared.get(this.panel.figure)), drawnAs = JSON.stringify(values);
    const rows = this.rows.map(row => ({ ...row }));  // Vega marks the objects that it is given
    if (this.drawn && drawnAs === this.drawnAs) {
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
    this.live?.drawn?.(page, this.panel, view);
  }

  /** What the slots hold. */
  values(view, prepared) {
    if (!this.live || !this.panel.choice) return {};
    const metric = view.metrics[view[this.panel.choice]];
    const drawn = this.rows.flatMap(row => this.panel.fields.map(field => row[field] ?? NaN)).filter(Number.isFinite);
    const drawnFrom = drawn.reduce((lowest, value) => Math.min(lowest, value), drawn[0] ?? 0);
    return slotValues(metric, drawnFrom, this.live.ends?.(this.rows, metric.maximized, prepared) ?? [null, null]);
  }

  /** Forgets what was dragged over it. */
  redraw() { this.drawnAs = ""; }
}
