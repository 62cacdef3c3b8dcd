// Draws time series with uPlot in the colours of the theme.
import "uplot/dist/uPlot.min.css";
import type uPlot from "uplot";

export interface Series {
  label: string;
  values: (number | null)[];
  /** Name of a theme colour, such as `accent`. */
  color: string;
  /** True to draw bars, stacked in the order of the series; otherwise a line is drawn. */
  isBar?: boolean;
}

export interface ChartOptions {
  times: number[];
  series: Series[];
  height: number;
  format: (value: number) => string;
  onselect?: ((from: Date, to: Date) => void) | undefined;
  zone: string;
  theme: string;
}

// Minimum height of a chart with a legend, in pixels. Lower charts have no room for it.
const MIN_LEGEND_HEIGHT = 150;

/** Adds up the bars, so that each begins where the one below it ends. */
function stackBars(series: Series[]): (number | null)[][] {
  let below: number[] = [];
  return series.map((line) => {
    if (!line.isBar) return line.values;
    below = line.values.map((value, index) => (value ?? 0) + (below[index] ?? 0));
    return below;
  });
}

/** Returns the indexes of values without neighbours, which no line connects. */
function findLonely(values: (number | null)[]): number[] {
  const isMissing = (index: number): boolean => (values[index] ?? null) === null;
  return values.flatMap((_, index) => (!isMissing(index) && isMissing(index - 1) && isMissing(index + 1) ? [index] : []));
}

/** Converts a date template of uPlot from American to ISO format. */
function isoTemplate(template: string): string {
  return template
    .replace("{M}/{D}/{YY}", "{YYYY}-{MM}-{DD}")
    .replace("{M}/{D}", "{MM}-{DD}")
    .replace("{h}{aa}", "{HH}:00")
    .replace("{h}:{mm}{aa}", "{HH}:{mm}");
}

export function drawChart(Plot: typeof uPlot, element: HTMLElement, options: ChartOptions): uPlot {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const stacked = stackBars(options.series);
  // The highest stack is drawn first, so that the ones below it stay visible on top of it.
  const order = options.series.map((_, index) => index).reverse();
  const gap = (options.times[1] ?? 0) - (options.times[0] ?? 0);
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return new Plot(
    {
      width: element.clientWidth,
      height: options.height,
      // Adds space at the right, because half of the last label extends beyond the time axis.
      padding: [12, 18, 0, 0],
      tzDate: (seconds) => Plot.tzDate(new Date(seconds * 1000), options.zone),
      fmtDate: (template) => Plot.fmtDate(isoTemplate(template)),
      legend: { show: options.series.length > 1 && options.height >= MIN_LEGEND_HEIGHT },
      cursor: { drag: { x: options.onselect !== undefined, y: false, setScale: false } },
      scales: { x: { time: true, range: (_, low, high) => [low - gap / 2, high + gap / 2] }, y: { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 58, values: (_, values) => values.map((value) => options.format(value)) }],
      series: [
        { value: (_, value) => (value === null ? "" : new Date(value * 1000).toLocaleString("sv", { timeZone: options.zone })) },
        ...order.map((index) => {
          const series = options.series[index] as Series;
          const shared = { label: series.label, stroke: color(series.color), points: series.isBar ? { show: false } : { show: true, size: 5, filter: () => findLonely(series.values) } };
          const value = (_: uPlot, __: number | null, ___: number, at: number | null): string => {
            const point = at === null ? null : series.values[at];
            return point === null || point === undefined ? "–" : options.format(point);
          };
          const bars = series.isBar ? Plot.paths.bars?.({ size: [0.8, 40], align: 0 }) : undefined;
          if (!bars) return { ...shared, value, width: 1.6 };
          return { ...shared, value, fill: color(series.color), width: 0, paths: bars };
        }),
      ],
      hooks: {
        setSelect: [
          (chart) => {
            if (chart.select.width < 4 || !options.onselect) return;
            const from = chart.posToVal(chart.select.left, "x");
            const to = chart.posToVal(chart.select.left + chart.select.width, "x");
            options.onselect(new Date(from * 1000), new Date(to * 1000));
          },
        ],
      },
    },
    [options.times, ...order.map((index) => stacked[index] as (number | null)[])],
    element,
  );
}
