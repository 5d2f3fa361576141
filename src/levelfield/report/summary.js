// The page of a summary: charts that do not change, and tables that sort.

const data = JSON.parse(select("#data").textContent);
const charts = selectAll("[data-panel]").map(place => new Chart(place, data.panels[place.dataset.panel]));
selectAll("table.sortable").forEach(table => new SortableTable(table));
window.page = { view: null, prepared: new Map() };
charts.forEach(chart => { chart.visible = true; });
window.page.settled = Promise.all(charts.map(chart => chart.update(window.page)));
