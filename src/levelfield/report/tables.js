// Tables whose headings sort them: a click sorts by the column, another one reverses the order.

class SortableTable {
  natural = null;  // the order that the rows come in, if it is that of a column: { column, direction }
  chosen = null;  // the reader's

  constructor(table) {
    this.table = table;
    this.headings = selectAll("thead th", table);
    this.headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => this.toggle(column));
      heading.append(button);
    });
  }

  toggle(column) {
    const order = this.chosen ?? this.natural;
    const reverse = order?.column === column && order.direction === "ascending";
    this.chosen = { column, direction: reverse ? "descending" : "ascending" };
    this.sort();
  }

  /** Sorts the rows by the text of the column that the reader chose. Equal rows keep their order. */
  sort() {
    const order = this.chosen ?? this.natural;
    this.headings.forEach((heading, i) => { heading.ariaSort = i === order?.column ? order.direction : null; });
    if (!this.chosen) return;
    const sign = order.direction === "ascending" ? 1 : -1, body = select("tbody", this.table);
    const rows = [...body.rows].map(row => ({ row, key: sortKey(row.cells[order.column]) }));
    rows.sort((a, b) => compareKeys(a.key, b.key, sign));
    body.append(...rows.map(({ row }) => row));
  }
}

/** The number that a cell begins with, or its text; null for a cell without a value. */
function sortKey(cell) {
  const text = (select(".main", cell) ?? cell).textContent.trim();
  if (text === "" || text === CONSTANTS.missing) return null;
  const number = parseFloat(text.replaceAll(",", ""));
  return cell.classList.contains("number") && !Number.isNaN(number) ? number : text;
}

/** Cells without a value come last, in both directions. */
function compareKeys(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
}
