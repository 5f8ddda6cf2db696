// The history: one chart per figure, a point per recording, which leads to the recording's report.
(() => {
  const { points, colours } = JSON.parse(document.getElementById("data").textContent);
  const WIDTH = Math.max(300, Math.min(620, innerWidth - 28)), HEIGHT = 220, // narrower on a phone, so that texts stay readable
    LEFT = 58, RIGHT = 12, TOP = 14, BOTTOM = 26;
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const labels = [...new Set(points.flatMap(({ values }) => Object.keys(values)))]
    .filter((name) => name.startsWith("exposed_ms.")).map((name) => name.slice("exposed_ms.".length));
  // The digits of a value on an axis follow from the distance of its ticks.
  const milliseconds = (value, digits = value < 10 ? 3 : 1) => `${charts.grouped(value, digits)} ms`;
  const share = (value, digits = 3) => `${(100 * value).toFixed(Math.max(0, digits - 2))} %`;
  const figures = [
    { title: "Step time", format: milliseconds, fromZero: true, lines: [
      { name: "without the profiler", metric: "free_step_ms", colour: "#0072B2" },
      { name: "as recorded", metric: "step_ms", colour: "#767676" }] },
    { title: "Exposed time by label", format: milliseconds, fromZero: true,
      lines: labels.map((name) => ({ name, metric: `exposed_ms.${name}`, colour: colours[name] })) },
    { title: "Bubble", format: share, fromZero: true, lines: [{ name: "bubble", metric: "bubble_fraction", colour: "#D55E00" }] },
    { title: "Model FLOP utilisation", format: share, fromZero: true, lines: [{ name: "MFU", metric: "utilisation", colour: "#009E73" }] },
  ];

  // Round values of an axis: about four, 1, 2 or 5 times a power of ten apart.
  function ticks(low, high) {
    const raw = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw), values = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) values.push(value);
    return [values, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
  }
  // Times on the axis have seconds where minutes do not tell the recordings apart.
  const timeEnd = new Set(points.map(({ time }) => time.slice(0, 16))).size < points.length ? 19 : 16;
  const xOf = (i) => LEFT + (points.length > 1 ? i / (points.length - 1) : 0.5) * (WIDTH - LEFT - RIGHT);
  const textOf = (point, line, format) => `${point.name}\n${point.time.slice(0, timeEnd).replace("T", " ")} UTC`
    + `${point.commit ? `\ncommit ${point.commit.slice(0, 12)}` : ""}\n${line.name} ${format(point.values[line.metric])}`
    + `${point.verdict ? `\ngate: ${point.verdict}` : ""}${point.report ? "\nclick: its report" : ""}`;

  function draw({ title, format, fromZero, lines }) {
    const used = lines.filter(({ metric }) => points.some(({ values }) => metric in values));
    if (!used.length) return null;
    const all = used.flatMap(({ metric }) => points.flatMap(({ values }) => (metric in values ? [values[metric]] : [])));
    const most = Math.max(...all), least = fromZero ? 0 : Math.min(...all), spare = (most - least || most || 1) * 0.12;
    const low = fromZero ? 0 : Math.max(0, least - spare), high = most + spare;
    const yOf = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const about = `${title} of ${points.length} recordings; the table has the figures`;
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": about });
    const [values, digits] = ticks(low, high);
    for (const value of values) {
      svg.append(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: yOf(value), y2: yOf(value), class: "tick" }),
        make("text", { x: LEFT - 6, y: yOf(value) + 4, "text-anchor": "end" }, format(value, digits)));
    }
    const every = Math.ceil(points.length / Math.floor(WIDTH / 110));
    points.forEach((point, i) => {
      if (i % every) return;
      const anchor = i === 0 ? "start" : i === points.length - 1 ? "end" : "middle";
      svg.append(make("text", { x: xOf(i), y: HEIGHT - 6, "text-anchor": anchor }, point.time.slice(5, timeEnd).replace("T", " ")));
    });
    points.forEach((point, i) => { // a recording that the gate finds slower: a band behind all its figures
      if (point.verdict !== "regressed") return;
      svg.append(make("rect", { x: xOf(i) - 9, width: 18, y: TOP, height: HEIGHT - TOP - BOTTOM, class: "regressed" }),
        make("text", { x: Math.min(xOf(i), WIDTH - RIGHT), y: TOP - 3, "text-anchor": i === points.length - 1 ? "end" : "middle", class: "regressed" }, "slower"));
    });
    for (const line of used) {
      const present = points.map((point, i) => [point, i]).filter(([{ values }]) => line.metric in values);
      const path = present.map(([{ values }, i]) => `${xOf(i).toFixed(1)},${yOf(values[line.metric]).toFixed(1)}`).join(" ");
      svg.append(make("polyline", { points: path, fill: "none", stroke: line.colour, "stroke-width": 2 }));
      for (const [point, i] of present) {
        const bad = point.verdict === "regressed" && used.length === 1; // beside other lines, the band alone says it
        const dot = make("circle", { cx: xOf(i), cy: yOf(point.values[line.metric]), r: bad ? 6 : 4, fill: bad ? "#D55E00" : line.colour });
        const link = make("a", { href: point.report ?? `#point-${i}`, "aria-label": textOf(point, line, format) }, dot);
        link.onpointermove = (event) => charts.showTip(textOf(point, line, format), event.clientX, event.clientY);
        link.onpointerleave = () => charts.showTip(null);
        svg.append(link);
      }
    }
    const section = document.createElement("section"), heading = document.createElement("h2");
    heading.textContent = title;
    section.append(heading);
    if (used.length > 1) {
      const legend = document.createElement("ul");
      legend.className = "legend";
      legend.append(...used.map(({ name, colour }) => {
        const entry = document.createElement("li"), key = document.createElement("i");
        key.style.background = colour;
        entry.append(key, name);
        return entry;
      }));
      section.append(legend);
    }
    section.append(svg);
    return section;
  }

  document.getElementById("curves").append(...figures.map(draw).filter(Boolean));
  sortableTables.enhance();
  document.documentElement.dataset.ready = "true";
})();
