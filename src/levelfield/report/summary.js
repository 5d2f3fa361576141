// The page of a summary: charts that do not change, and tables that sort.

window.page = { view: null, prepared: new Map() };
const { panels } = JSON.parse(select("#data").textContent);
const charts = selectAll("[data-panel]").map(place => new Chart(place, panels[place.dataset.panel], window.page));
window.page.settled = Promise.all(charts.map(chart => chart.show()));
selectAll("table.sortable").forEach(table => new SortableTable(table));
