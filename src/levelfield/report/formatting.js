// Numbers as text, as formatting.py writes them.

/** Returns the value, or, if it lies halfway between two numbers with that many decimals, the even one, as Python. */
function halfToEven(value, decimals) {
  const halfway = decimals < 0 ? Math.abs(value) / 10 ** -decimals % 1 === 0.5
    : Math.abs(value) * 2 ** (decimals + 1) % 2 === 1;
  return halfway ? 2 * Math.round(value * 10 ** decimals / 2) / 10 ** decimals : value;
}

/** C's %.{digits}g. */
function formatGeneral(value, digits) {
  if (value === 0) return "0";
  const rounded = halfToEven(value, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const [mantissa, exponent] = rounded.toExponential(digits - 1).split("e").map(Number);
  if (exponent >= -4 && exponent < digits) return String(Number(rounded.toPrecision(digits)));
  return `${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

function formatMetric(metric, value) {
  if (Number.isNaN(value)) return CONSTANTS.missing;
  if (!Number.isFinite(value)) return `${value > 0 ? "inf" : "-inf"}${metric.share ? "%" : ""}`;
  if (!metric.share) return formatGeneral(value, CONSTANTS.metricDigits);
  return `${halfToEven(100 * value, CONSTANTS.shareDecimals).toFixed(CONSTANTS.shareDecimals)}%`;
}

const formatInterval = (metric, low, high) => formatEnds(value => formatMetric(metric, value), low, high);

/** An interval whose ends may be open, that is infinite. */
function formatEnds(format, low, high) {
  const isOpen = end => Math.abs(end) === Infinity;
  if (isOpen(low) && isOpen(high)) return "unknown";
  if (isOpen(low)) return `≤ ${format(high)}`;
  return isOpen(high) ? `≥ ${format(low)}` : `${format(low)} – ${format(high)}`;
}

const formatPercent = value => (Number.isNaN(value) ? CONSTANTS.missing : `${halfToEven(100 * value, 0).toFixed(0)}%`);

const formatCount = value =>
  (Number.isNaN(value) ? CONSTANTS.missing : Math.round(halfToEven(value, 0)).toLocaleString("en-US"));

const formatPValue = value => (Number.isNaN(value) ? CONSTANTS.missing : formatGeneral(value, CONSTANTS.pValueDigits));

/** "a", "a and b", "a, b, and c" */
function joinWords(words) {
  return words.length < 3 ? words.join(" and ") : `${words.slice(0, -1).join(", ")}, and ${words.at(-1)}`;
}
