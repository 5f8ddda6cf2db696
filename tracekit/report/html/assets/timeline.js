// A timeline: sections of rows on one time axis, drawn with ECharts, with tooltips, zoom and keys, and its legend.
// Everything from a trace is put on the page as text or as pixels, never as markup.
const timelines = (() => {
  const MAX_LABELS_PER_ROW = 700, MAX_OUTLINES = 3000;
  const PATH = -1; // stands for the critical path among the hidden kinds
  const IDLE = "#E8EBEE"; // colour of idle time; the page's own colours replace it, which follow a dark screen
  const ROW_FILL = 0.84; // share of a row's height that its boxes fill
  const SECTION_GAP_PX = 54, MEMORY_PX = 64, TOP_PX = 30, LEFT_PX = 106, RIGHT_PX = 22;
  const UPPER = 1, LOWER = 2; // part of the row that a box fills; 0 is the whole row
  const tip = document.getElementById("tip"), said = document.getElementById("said");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Options that all custom series share. ECharts calls renderItem once for each of `data`, here one [time, row] each.
  const series = (name, axis, data, renderItem, more = {}) => ({
    type: "custom", name, xAxisIndex: axis, yAxisIndex: axis, silent: true, clip: true, animation: false,
    data, encode: { x: 0, y: 1 }, renderItem, ...more,
  });

  // Where a row lies on the screen: x of time 0, pixels per ms, and the top and height of its boxes.
  const rowGeometry = (api, row) => {
    const [x0, y] = api.coord([0, row]), [x1] = api.coord([1, row]), height = api.size([0, 1])[1] * ROW_FILL;
    return { x0, scale: x1 - x0, top: y - height / 2, height };
  };

  function createChart(element) {
    // A wheel over a timeline scrolls the page, as everywhere, until the reader clicks the timeline or holds Ctrl.
    const zooms = (event) => document.activeElement === element || event.ctrlKey || event.metaKey;
    for (const name of ["wheel", "mousewheel"]) {
      const keepFromChart = (event) => { if (!zooms(event)) event.stopPropagation(); };
      element.addEventListener(name, keepFromChart, { capture: true, passive: true });
    }
    return echarts.init(element, null, { renderer: "canvas" });
  }

  // Draw a timeline into `element` and return functions to control it.
  //   rows      names of the rows, the same in every section
  //   kinds     { name, colour } of each kind of box
  //   sections  { name, boxes } one below the other
  //   end       end of the time axis in ms
  //   hidden    Set of kinds that are switched off; the caller keeps it
  //   describe  (hit) → text of the tooltip; a hit is { section, row, boxes, i }
  //   label     (boxes, i) → text in a box, if any
  //   open      (hit) called for a double click
  //   outlines  (boxes) → Map of row → [[start, end, part]] of the critical path, if it is drawn
  //   memory    { points: [[ms, allocated GB, reserved GB]], top: GB } of a line below the sections
  function draw(element, { rows, kinds, sections, end, hidden, describe, label, open, outlines, memory }) {
    const rowHeight = Math.max(9, Math.min(34, 640 / (rows.length * sections.length)));
    const gridHeight = Math.max(rows.length * rowHeight, 30);
    const sectionIndices = sections.map((_, index) => index), memoryAxis = sections.length;
    const axes = memory ? [...sectionIndices, memoryAxis] : sectionIndices;
    const chartHeight = sections.length * (gridHeight + SECTION_GAP_PX) + (memory ? MEMORY_PX + SECTION_GAP_PX : 0) + 64;
    element.style.height = `${chartHeight}px`;
    const chart = echarts.getInstanceByDom(element) || createChart(element);
    chart.resize();
    const onePerRow = rows.map((_, row) => [0, row]), once = [[0, 0]];

    // All boxes of one kind in one section.
    const boxSeries = (section, kind) => series(kinds[kind].name, section, onePerRow, (params, api) => {
      const { x, width } = params.coordSys, row = api.value(1);
      const window = { left: x, right: x + width };
      const shape = { key: boxes.keyOf(sections[section].boxes), hidden, row, kind, ...window, ...rowGeometry(api, row) };
      return { type: "boxes", shape, style: { fill: kinds[kind].colour === IDLE ? css("--idle") : kinds[kind].colour } };
    });

    // Labels in the boxes of one section that are wide and high enough.
    const labelSeries = (section) => series("numbers", section, onePerRow, (params, api) => {
      const all = sections[section].boxes, row = api.value(1), range = all.rows.get(row);
      const { x0, scale, top, height } = rowGeometry(api, row);
      const left = params.coordSys.x, right = left + params.coordSys.width;
      if (!range || height < 10) return null;
      const children = [];
      for (let i = range[0]; i < range[1] && children.length < MAX_LABELS_PER_ROW; i++) {
        const boxLeft = x0 + all.start[i] * scale, boxRight = x0 + all.end[i] * scale, text = String(label(all, i));
        const tooNarrow = text === "" || boxRight - boxLeft < 7 * text.length + 2;
        if (tooNarrow || boxRight < left || boxLeft > right || hidden.has(all.kind[i])) continue;
        const part = all.part[i], fontSize = Math.min(11, part ? height / 2 : height - 2);
        if (fontSize < 7) continue;
        const x = (Math.max(boxLeft, left) + Math.min(boxRight, right)) / 2;
        const y = top + height * (part === UPPER ? 0.25 : part === LOWER ? 0.75 : 0.5);
        const style = { x, y, text, fill: "#16202a", align: "center", verticalAlign: "middle", fontSize };
        children.push({ type: "text", style });
      }
      return { type: "group", children };
    }, { z: 5 });

    // The critical path: a line around each box it runs through. Neighbours that the eye cannot separate share a line.
    const pathSeries = (section) => series("critical path", section, once, (params, api) => {
      const left = params.coordSys.x, right = left + params.coordSys.width, frames = [];
      for (const [row, pieces] of hidden.has(PATH) ? [] : outlines(sections[section].boxes)) {
        const { x0, scale, top, height } = rowGeometry(api, row);
        let last = null;
        for (const [start, stop, part] of pieces) {
          const frameLeft = Math.max(x0 + start * scale, left);
          const frameRight = Math.min(Math.max(x0 + stop * scale, frameLeft + 2), right);
          if (frameRight < left || frameLeft > right) continue;
          if (last && last.part === part && frameLeft < last.right + 1.5) {
            last.right = Math.max(frameRight, last.right);
            continue;
          }
          if (frames.length >= MAX_OUTLINES) break;
          last = { left: frameLeft, right: frameRight, part, top, height };
          frames.push(last);
        }
      }
      const style = { fill: "none", stroke: css("--ink"), lineWidth: 2 };
      const children = frames.map((frame) => {
        const y = frame.part === LOWER ? frame.top + frame.height / 2 : frame.top;
        const height = frame.part ? frame.height / 2 : frame.height;
        return { type: "rect", shape: { x: frame.left, y, width: frame.right - frame.left, height }, style };
      });
      return { type: "group", children };
    }, { z: 6 });

    // One column of the memory points as a line of steps.
    const memorySeries = (column, dashed) => series("memory", memoryAxis, once, (params, api) => {
      const points = [];
      memory.points.forEach((point, i) => {
        if (point[column] === null) return;
        const until = i + 1 < memory.points.length ? memory.points[i + 1][0] : end;
        points.push(api.coord([point[0], point[column]]), api.coord([until, point[column]]));
      });
      const stroke = css(dashed ? "--soft" : "--accent");
      return { type: "polyline", shape: { points }, style: { fill: "none", stroke, lineWidth: 1.5, lineDash: dashed ? [4, 3] : null } };
    });

    const render = () => {
      const soft = css("--soft"), line = css("--line"), faintLine = { lineStyle: { color: line, opacity: 0.6 } };
      const named = {
        nameLocation: "start", nameTextStyle: { color: css("--ink"), fontWeight: 600, align: "right" },
        axisTick: { show: false }, axisLine: { show: false },
      };
      const timeAxis = (index) => ({
        gridIndex: index, type: "value", min: 0, max: end,
        axisLabel: {
          show: !memory || index === memoryAxis, color: soft, formatter: (ms) => `${+ms.toFixed(3)}`,
          showMaxLabel: false, hideOverlap: true,
        },
        axisLine: { lineStyle: { color: line } }, splitLine: faintLine,
        name: index === axes.length - 1 ? "time (ms)" : "", nameLocation: "middle", nameGap: 24,
        nameTextStyle: { color: soft },
      });
      const rowAxis = (index) => ({
        ...named, gridIndex: index, type: "category", data: rows, inverse: true, name: sections[index].name,
        axisLabel: { color: soft, fontSize: Math.min(12, rowHeight), interval: rowHeight < 12 ? "auto" : 0 },
      });
      const gigabyteAxis = (index) => ({
        ...named, gridIndex: index, type: "value", min: 0, max: memory.top, name: "memory (GB)", nameLocation: "end",
        axisLabel: { color: soft, formatter: (gb) => `${+gb.toPrecision(3)}`, hideOverlap: true },
        splitNumber: 2, splitLine: faintLine,
      });
      const sectionSeries = (section) => [
        ...kinds.map((_, kind) => boxSeries(section, kind)),
        ...(label ? [labelSeries(section)] : []),
        ...(outlines ? [pathSeries(section)] : []),
      ];
      chart.setOption({
        animation: false,
        // The page draws its own legend; this one switches the series.
        legend: {
          show: false, data: kinds.map((kind) => kind.name),
          selected: Object.fromEntries(kinds.map((kind, index) => [kind.name, !hidden.has(index)])),
        },
        grid: axes.map((index) => ({
          left: LEFT_PX, right: RIGHT_PX, outerBoundsMode: "none", // one left edge, however long the names are
          top: TOP_PX + index * (gridHeight + SECTION_GAP_PX), height: index === memoryAxis ? MEMORY_PX : gridHeight,
        })),
        xAxis: axes.map(timeAxis),
        yAxis: axes.map((index) => (index === memoryAxis ? gigabyteAxis(index) : rowAxis(index))),
        dataZoom: [
          { type: "inside", xAxisIndex: axes, filterMode: "none", minSpan: 0.02, preventDefaultMouseMove: false },
          {
            type: "slider", show: !matchMedia("print").matches, xAxisIndex: axes, filterMode: "none", bottom: 6,
            height: 18, brushSelect: false, showDetail: false, borderColor: line, fillerColor: css("--filler"),
            handleStyle: { color: css("--ground"), borderColor: soft },
          },
        ],
        series: [
          ...sectionIndices.flatMap(sectionSeries),
          ...(memory ? [memorySeries(2, true), memorySeries(1, false)] : []),
        ],
      }, { replaceMerge: ["series", "grid", "xAxis", "yAxis"] });
    };
    render();

    const showTip = (text, x, y) => {
      tip.hidden = text === null;
      if (text === null) return;
      tip.textContent = text;
      const box = element.getBoundingClientRect(), below = box.top + y + 16;
      const above = Math.max(4, box.top + y - tip.offsetHeight - 10);
      tip.style.left = `${Math.max(4, Math.min(box.left + x + 14, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${below + tip.offsetHeight > innerHeight ? above : below}px`;
    };
    const hideTip = () => showTip(null);

    // The box under the mouse: of several at that time, the one that starts last.
    const hitInSection = (index, x, y) => {
      if (!chart.containPixel({ gridIndex: index }, [x, y])) return null;
      const [time, rowValue] = chart.convertFromPixel({ gridIndex: index }, [x, y]), row = Math.round(rowValue);
      const all = sections[index].boxes, range = all.rows.get(row);
      if (!range) return null;
      const half = y < chart.convertToPixel({ gridIndex: index }, [time, row])[1] ? UPPER : LOWER;
      let found = null;
      for (let i = range[0]; i < range[1] && all.start[i] <= time; i++) {
        const inHalf = all.part[i] === 0 || all.part[i] === half;
        if (all.end[i] >= time && inHalf && !hidden.has(all.kind[i])) found = i;
      }
      return found === null ? null : { section: sections[index], row, boxes: all, i: found };
    };
    const hitAt = (x, y) => sectionIndices.map((index) => hitInSection(index, x, y)).find(Boolean);
    const memoryTextAt = (x, y) => {
      if (!memory || !chart.containPixel({ gridIndex: memoryAxis }, [x, y])) return null;
      const time = chart.convertFromPixel({ gridIndex: memoryAxis }, [x, y])[0];
      const point = memory.points.findLast(([pointTime]) => pointTime <= time);
      if (!point) return null;
      const reserved = point[2] === null ? "" : `, ${point[2].toPrecision(3)} GB reserved`;
      return `memory at ${time.toFixed(3)} ms\n${point[1].toPrecision(3)} GB allocated${reserved}`;
    };
    const onMove = ({ offsetX: x, offsetY: y }) => {
      const hit = hitAt(x, y);
      showTip(memoryTextAt(x, y) ?? (hit ? describe(hit) : null), x, y);
    };
    const onDoubleClick = ({ offsetX: x, offsetY: y }) => {
      const hit = hitAt(x, y);
      if (hit && open) open(hit);
    };
    // Of an earlier drawing in this element only the own listeners are removed: ECharts listens to the same events.
    element.removeListeners?.();
    const events = chart.getZr(), listeners = { mousemove: onMove, globalout: hideTip, dblclick: onDoubleClick };
    for (const [name, listener] of Object.entries(listeners)) events.on(name, listener);
    element.removeListeners = () => {
      for (const [name, listener] of Object.entries(listeners)) events.off(name, listener);
    };

    // Zoom to a part of the time axis, in per cent.
    const zoom = (from, to) => chart.dispatchAction({
      type: "dataZoom", dataZoomIndex: 0, start: Math.max(0, from), end: Math.min(100, to),
    });
    const zoomed = () => { const { start, end: stop } = chart.getOption().dataZoom[0]; return [start, stop]; };

    // The box that the keyboard has reached, described in the tooltip and to screen readers.
    const cursor = { section: 0, row: 0, i: null };
    const cursorHit = () => {
      const section = sections[cursor.section];
      return { section, row: cursor.row, boxes: section.boxes, i: cursor.i };
    };
    const describeCursor = () => {
      const { boxes: all, i } = cursorHit(), middle = (all.start[i] + all.end[i]) / 2;
      const share = 100 * middle / end, [start, stop] = zoomed();
      if (share < start || share > stop) zoom(share - (stop - start) / 2, share + (stop - start) / 2);
      const [x, y] = chart.convertToPixel({ gridIndex: cursor.section }, [middle, cursor.row]);
      showTip(describe(cursorHit()), x, y);
      said.textContent = tip.textContent;
    };
    const moveInRow = (direction) => {
      const all = sections[cursor.section].boxes, [first, last] = all.rows.get(cursor.row) || [0, 0];
      let next = cursor.i === null ? (direction > 0 ? first : last - 1) : cursor.i + direction;
      while (next >= first && next < last && hidden.has(all.kind[next])) next += direction;
      if (next < first || next >= last) return;
      cursor.i = next;
      describeCursor();
    };
    const moveToRow = (direction) => {
      const lastRow = rows.length * sections.length - 1; // counted over all sections
      const next = Math.min(lastRow, Math.max(0, cursor.section * rows.length + cursor.row + direction));
      Object.assign(cursor, { section: Math.floor(next / rows.length), row: next % rows.length, i: null });
      moveInRow(1);
    };
    const pan = (share) => {
      const [start, stop] = zoomed(), width = stop - start;
      const from = Math.max(0, Math.min(100 - width, start + share * width));
      zoom(from, from + width);
    };
    const scaleWindow = (factor) => {
      const [start, stop] = zoomed(), middle = (start + stop) / 2, half = (stop - start) * factor / 2;
      zoom(middle - half, middle + half);
    };
    const keys = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), ArrowUp: () => moveToRow(-1), ArrowDown: () => moveToRow(1),
      "+": () => scaleWindow(2 / 3), "=": () => scaleWindow(2 / 3), "-": () => scaleWindow(1.5), 0: () => zoom(0, 100),
      n: () => moveInRow(1), p: () => moveInRow(-1), Escape: hideTip,
      Enter: () => { if (cursor.i !== null && open) open(cursorHit()); },
    };
    element.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
      const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    element.onblur = hideTip;

    const setShown = (kindsToSet, shown) => {
      for (const kind of kindsToSet) if (shown) hidden.delete(kind); else hidden.add(kind);
      render();
    };
    return { resize: () => chart.resize(), render, zoom, setShown };
  }

  // Draw the legend: one button per name, which switches all kinds of that name (chunks differ only in shade).
  function drawLegend(element, kinds, hidden, setShown, { shaded, path } = {}) {
    const entries = new Map(); // name → { colour, kinds }
    kinds.forEach(({ name, colour }, kind) => {
      if (entries.has(name)) entries.get(name).kinds.push(kind); else entries.set(name, { colour, kinds: [kind] });
    });
    if (path) entries.set("critical path", { colour: null, kinds: [PATH] });
    element.replaceChildren(...[...entries].map(([name, entry]) => {
      const button = document.createElement("button"), key = document.createElement("i");
      if (entry.colour === IDLE) key.className = "idle";
      else if (entry.colour === null) key.className = "path";
      else key.style.background = entry.colour;
      button.append(key, name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(entry.kinds[0])));
      button.onclick = () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        setShown(entry.kinds, shown);
      };
      return button;
    }));
    if (shaded) element.append("lighter: later chunk");
  }

  return { draw, drawLegend };
})();
