// One canvas chart: groups of rows on a common time axis (ms). Mouse, touch and keys move the window; rows scroll.
// A group is { name, rows } or, with compact, one row beside its name; with toggle(group) and pin(group) its name opens and pins it,
// with remark (a text) it stands out.
// A row is { name, height, tracks, describe(box), text(box) } or, for a line, { name, height, line: { points, top } }.
const charts = (() => {
  const AXIS_PX = 30, GROUP_GAP_PX = 10, COMPACT_GAP_PX = 1, ROW_GAP_PX = 2, NAME_LINE_PX = 14;
  const MAX_PAPER_PX = 1380; // height of a printed chart: what one sheet holds at PAPER_PX
  const PAD_ROWS = 96; // rows of pixels above and below the picture, so that rows that stick out need no clipping
  const MIN_WINDOW_MS = 1e-4;
  const CLICK_PX = 5, HIT_PX = 4, TEXT_MIN_PX = 34;
  const tip = document.getElementById("tip"), announcer = document.getElementById("said");
  const PAPER_PX = 1040; // width of a printed chart; the paper scales it
  let printing = false;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const announce = (text) => { announcer.textContent = text; };

  // "#rrggbb" as the 32-bit value of an image's pixel, and whether text on it should be white.
  const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const pixelOf = (colour) => { const [r, g, b] = channels(colour); return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0; };
  // A colour between two, "#rrggbb" each: share 0 is the first, 1 the second.
  const mixed = (one, other, share) => {
    const parts = channels(one), others = channels(other);
    return `#${parts.map((part, i) => Math.round(part + share * (others[i] - part)).toString(16).padStart(2, "0")).join("")}`;
  };
  const isDarkColour = (colour) => { const [r, g, b] = channels(colour); return 0.3 * r + 0.59 * g + 0.11 * b < 125; };

  function showTip(text, x, y) {
    tip.hidden = text === null;
    if (text === null) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    const below = y + 16;
    tip.style.top = `${below + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 10) : below}px`;
  }

  // Top and height of a track within its row, as shares: by its part (0 the whole row, 1 the upper half, 2 the lower), else
  // all tracks share the row.
  const extent = (row, level) => {
    const { part } = row.tracks[level], count = row.tracks.length;
    if (part === undefined) return [level / count, 1 / count];
    return [part === 2 ? 0.5 : 0, part ? 0.5 : 1];
  };

  // Distances between ticks: 1, 2 or 5 times a power of ten, about one per 90 pixels.
  function tickStep(span, width) {
    const raw = span / Math.max(2, width / 90), power = 10 ** Math.floor(Math.log10(raw));
    return power * ([1, 2, 5, 10].find((factor) => factor * power >= raw));
  }
  // A number with separators of thousands, as in the tables; 0 has no sign.
  const grouped = (value, digits) => value
    .toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay: "negative" });
  const timeText = (ms, step) => {
    const [value, unit] = step >= 1000 ? [ms / 1000, "s"] : step >= 0.0999 ? [ms, "ms"] : [ms * 1000, "µs"];
    const scaled = step >= 1000 ? step / 1000 : step >= 0.0999 ? step : step * 1000;
    return `${grouped(value, Math.max(0, -Math.floor(Math.log10(scaled) + 1e-9)))} ${unit}`;
  };

  // options: { groups, kinds: [{ name, colour }], begin, end, window, hidden, open(hit), select(hit), overlay(context, scale),
  //   onWindow(from, to), shade: [{ from, to, name }] }
  function create(element, options) {
    element.replaceChildren();
    const spacer = document.createElement("div"), canvas = document.createElement("canvas");
    spacer.className = "rows";
    spacer.append(canvas);
    element.append(spacer);
    const context = canvas.getContext("2d", { alpha: false });
    let { groups, begin, end } = options;
    const hidden = options.hidden || new Set();
    let [from, to] = options.window || [begin, end];
    let rows = [], totalHeight = 0, image = null, pixels = null, scheduled = false, lastFrameMs = 0;
    let cursor = null; // { row, box } that the keyboard has reached
    let mouseX = null;
    let area = null; // selected by Shift and drag: times from, to and tops of rows top, bottom

    const chartWidth = () => (printing ? PAPER_PX : element.clientWidth);
    const isNarrow = () => chartWidth() < 560; // then the name of a group has a line of its own, above its rows
    const gutter = () => (isNarrow() ? 90 : 128);
    const plotWidth = () => Math.max(20, chartWidth() - gutter() - 6);
    const scrolled = () => (printing ? 0 : element.scrollTop); // paper shows all rows
    const toX = (time) => gutter() + (time - from) / (to - from) * plotWidth();
    const toTime = (x) => from + (x - gutter()) / plotWidth() * (to - from);

    // Place all rows below each other; a row's top is in CSS pixels below the axis.
    function layout() {
      rows = [];
      let top = 0;
      for (const group of groups) {
        const gap = group.compact ? COMPACT_GAP_PX : GROUP_GAP_PX;
        group.top = top + gap / 2;
        top += gap + (group.name && isNarrow() && !group.compact ? NAME_LINE_PX : 0);
        for (const row of group.rows) {
          Object.assign(row, { top, group });
          rows.push(row);
          top += row.height + ROW_GAP_PX;
        }
        group.bottom = top;
      }
      totalHeight = top + AXIS_PX + 6;
      spacer.style.height = `${totalHeight}px`;
      resize();
    }

    function resize() {
      const ratio = printing ? 2 : Math.min(devicePixelRatio || 1, 2);
      const height = printing ? Math.min(totalHeight, MAX_PAPER_PX) : Math.min(totalHeight, element.clientHeight || totalHeight);
      canvas.style.width = `${chartWidth()}px`;
      canvas.style.height = `${height}px`;
      canvas.width = Math.max(1, Math.round(chartWidth() * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
      canvas.ratio = ratio;
      image = new ImageData(canvas.width, canvas.height + 2 * PAD_ROWS * ratio);
      pixels = new Uint32Array(image.data.buffer);
      invalidate();
    }

    function invalidate() {
      if (scheduled) return;
      scheduled = true;
      requestAnimationFrame(() => { scheduled = false; render(); });
    }

    function render() {
      const started = performance.now(), { ratio } = canvas, scroll = scrolled();
      const ground = css("--ground"), ink = css("--ink"), soft = css("--soft"), line = css("--line");
      const idle = css("--idle"), pad = PAD_ROWS * ratio, height = canvas.height;
      const named = { idle, ink, dim: css("--dim") };
      const colours = options.kinds.map(({ colour }) => named[colour] || colour);
      const picture = {
        pixels, stride: canvas.width, left: Math.round(gutter() * ratio), width: Math.round(plotWidth() * ratio),
        from, to, begin, end, hidden, colours: colours.map(pixelOf),
      };
      pixels.fill(pixelOf(ground));
      drawGrid(picture, pixelOf(mixed(ground, line, 0.7)));
      const isDimmed = Boolean(options.dimmed?.()), notDimmed = new Set(options.kinds.map((_, kind) => kind).filter((kind) => kind !== options.dimKind));
      const dimmedPicture = { ...picture, hidden: notDimmed }, namedPicture = { ...picture, hidden: new Set([...hidden, options.dimKind]) };
      const yOf = (row) => AXIS_PX + row.top - scroll, seen = rows.filter((row) => {
        const y = yOf(row);
        return y + row.height > AXIS_PX && y < height / ratio;
      });
      for (const row of seen) {
        const top = Math.round(yOf(row) * ratio) + pad, rowHeight = Math.round(row.height * ratio);
        if (row.line) continue;
        const draw = (shown) => row.tracks.forEach((track, level) => {
          const [offset, share] = extent(row, level), gap = share < 1 && rowHeight > 12 ? 1 : 0;
          const trackTop = Math.round(top + offset * rowHeight), bottom = Math.round(top + (offset + share) * rowHeight);
          tracks.draw(track, shown, trackTop, Math.max(1, bottom - trackTop - gap));
        });
        // Where tracks lie above each other, what a search dims lies below what it names.
        const pictures = row.compact && isDimmed ? [dimmedPicture, namedPicture] : [picture];
        pictures.forEach(draw);
      }
      if (printing) drawImageOnPaper(pad); else context.putImageData(image, 0, -pad);
      context.save();
      context.scale(ratio, ratio);
      const scale = { toX, yOf, scroll, from, to, gutter: gutter(), width: plotWidth(), ink, soft, line, ground, height: height / ratio };
      for (const row of seen) {
        if (row.line) drawLine(row, scale);
        else if (row.text) drawTexts(row, picture, scale, colours);
      }
      options.overlay?.(context, scale);
      drawArea(scale);
      drawAxis(scale);
      drawNames(seen, scale);
      context.restore();
      lastFrameMs = performance.now() - started;
    }

    // A line at every tick, below the boxes: over them it would seem to cut them.
    function drawGrid({ stride, left, width }, colour) {
      const step = tickStep(to - from, plotWidth()), pxPerMs = width / (to - from);
      for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
        const column = left + Math.min(width - 1, Math.round((tick - from) * pxPerMs));
        for (let y = column; y < pixels.length; y += stride) pixels[y] = colour;
      }
    }

    // Browsers print what was drawn by calls, and leave out what was put as pixels: the pixels go through a canvas of their own.
    function drawImageOnPaper(pad) {
      const copied = document.createElement("canvas");
      copied.width = image.width;
      copied.height = image.height;
      copied.getContext("2d").putImageData(image, 0, 0);
      context.drawImage(copied, 0, -pad);
    }

    function drawTexts(row, picture, scale, colours) {
      context.textBaseline = "middle";
      const minPx = (row.minTextPx ?? TEXT_MIN_PX) * canvas.ratio;
      row.tracks.forEach((track, level) => {
        const [offset, share] = extent(row, level), trackHeight = share * row.height;
        if (trackHeight < 9) return;
        context.font = `${Math.min(11, trackHeight - 1)}px system-ui, sans-serif`;
        const y = scale.yOf(row) + (offset + share / 2) * row.height + 0.5;
        for (const box of tracks.wideBoxes(track, picture, minPx)) {
          const left = Math.max(scale.toX(track.boxes.start[box]), scale.gutter) + 3;
          const room = Math.min(scale.toX(track.boxes.end[box]), scale.gutter + scale.width) - left - 2;
          const text = row.text(box), letters = Math.floor(room / 6.2);
          if (!text || letters < 1) continue;
          context.fillStyle = isDarkColour(colours[track.boxes.kind[box]]) ? "#ffffff" : "#16202a";
          const shown = text.length <= letters ? text : letters > 3 ? `${text.slice(0, letters - 1)}…` : "";
          if (row.centred && shown) {
            context.textAlign = "center";
            context.fillText(shown, left + room / 2, y);
          } else if (shown) {
            context.textAlign = "left";
            context.fillText(shown, left, y);
          }
        }
      });
    }

    // A line that keeps each value until the next point: [ms, value, second value or null].
    function drawLine(row, scale) {
      const { points, top } = row.line, y0 = scale.yOf(row) + row.height;
      const yAt = (value) => y0 - value / top * row.height;
      for (const [column, colour, dash] of [[2, scale.soft, [4, 3]], [1, css("--accent"), []]]) {
        context.strokeStyle = colour;
        context.setLineDash(dash);
        context.beginPath();
        points.forEach((point, i) => {
          if (point[column] === null) return;
          const left = Math.max(scale.gutter, scale.toX(point[0]));
          const right = Math.min(scale.gutter + scale.width, scale.toX(points[i + 1]?.[0] ?? end));
          if (right < scale.gutter || left > scale.gutter + scale.width) return;
          context.lineTo(left, yAt(point[column]));
          context.lineTo(right, yAt(point[column]));
        });
        context.stroke();
      }
      context.setLineDash([]);
    }

    function drawAxis({ gutter: left, width, soft, line, ground, height, ink }) {
      context.fillStyle = ground;
      context.fillRect(0, 0, left + width + 6, AXIS_PX);
      const step = tickStep(to - from, width);
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "alphabetic";
      context.strokeStyle = line;
      context.lineWidth = 1;
      for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
        const x = Math.round(toX(tick)) + 0.5;
        context.beginPath();
        context.moveTo(x, AXIS_PX - 6);
        context.lineTo(x, AXIS_PX);
        context.stroke();
        context.fillStyle = soft;
        const text = timeText(tick, step), half = context.measureText(text).width / 2;
        if (x > left + half && x < left + width - half) context.fillText(text, x, 12);
      }
      for (const { from: start, name } of options.shade || []) { // the first moment of each step
        const x = Math.round(toX(start)) + 0.5;
        if (x < left || x > left + width) continue;
        context.strokeStyle = soft;
        context.setLineDash([3, 3]);
        context.beginPath();
        context.moveTo(x, 14);
        context.lineTo(x, height);
        context.stroke();
        context.setLineDash([]);
        context.textAlign = "left";
        context.fillStyle = ink;
        context.fillText(name, x + 3, 24);
      }
      options.marks?.(context, { toX, from, to, left, width });
    }

    // The name of a group, with a triangle if it opens and a star if it can be pinned; returns its right edge.
    function drawGroupName(group, y, soft) {
      if (!group.toggle || printing) {
        const left = group.remark ? 6 : 2;
        context.fillText(group.name, left, y);
        return context.measureText(group.name).width + left;
      }
      context.fillText(`${group.compact ? "▸" : "▾"} ${group.name}`, 5, y);
      const right = context.measureText(`▸ ${group.name}`).width + 10;
      group.star = [right, right + 12];
      context.fillStyle = group.pinned ? context.fillStyle : soft;
      context.fillText(group.pinned ? "★" : "☆", right, y);
      return right + 12;
    }

    // The area that is being selected, or was.
    function drawArea({ gutter: left, width, ink }) {
      if (!area) return;
      const [from_, to_] = [area.from, area.to].sort((a, b) => a - b), [top, bottom] = [area.top, area.bottom].sort((a, b) => a - b);
      const x = Math.max(left, toX(from_)), right = Math.min(left + width, toX(to_));
      context.fillStyle = "rgb(0 114 178 / .12)";
      context.fillRect(x, AXIS_PX + top - scrolled(), right - x, bottom - top);
      context.strokeStyle = ink;
      context.lineWidth = 1;
      context.setLineDash([4, 3]);
      context.strokeRect(x, AXIS_PX + top - scrolled(), right - x, bottom - top);
      context.setLineDash([]);
    }

    function drawNames(seen, { gutter: left, soft, ink, ground, height, line, yOf }) {
      context.fillStyle = ground;
      context.fillRect(0, AXIS_PX, left - 1, height);
      context.textBaseline = "middle";
      const named = []; // what the groups' names cover: [right, y]
      for (const group of groups) {
        const y = AXIS_PX + group.top - scrolled();
        if (y > height || AXIS_PX + group.bottom - scrolled() < AXIS_PX) continue;
        if (!group.compact) {
          context.strokeStyle = line;
          context.beginPath();
          context.moveTo(0, Math.round(y) - 0.5);
          context.lineTo(left + plotWidth(), Math.round(y) - 0.5);
          context.stroke();
        }
        if (group.remark) {
          context.fillStyle = "#D55E00";
          context.fillRect(0, Math.max(y, AXIS_PX), 3, group.bottom - group.top);
        }
        if (!group.name) continue;
        context.font = `${group.remark || !group.compact ? "600 " : ""}${group.compact ? Math.min(11, group.rows[0].height + 1) : 12}px system-ui, sans-serif`;
        context.fillStyle = group.remark ? "#D55E00" : ink;
        context.textAlign = "left";
        if (group.compact) {
          drawGroupName(group, yOf(group.rows[0]) + group.rows[0].height / 2 + 0.5, soft);
          continue;
        }
        const first = isNarrow() ? y + NAME_LINE_PX / 2 + 4 : yOf(group.rows[0]) + Math.max(8, group.rows[0].height / 2);
        // The name stays in sight while any row of its group is.
        const middle = Math.min(Math.max(first, AXIS_PX + 9), AXIS_PX + group.bottom - scrolled() - 8);
        named.push([drawGroupName(group, middle, soft) + 4, middle]);
      }
      context.textAlign = "right";
      context.fillStyle = soft;
      for (const row of seen) {
        if (row.height < 7 || row.name === "") continue;
        context.font = `${Math.min(11, Math.max(9, row.height))}px system-ui, sans-serif`;
        const middle = yOf(row) + row.height / 2 + 0.5, widest = left * 0.62, start = left - 6 - Math.min(widest, context.measureText(row.name).width);
        if (!named.some(([right, y]) => start < right && Math.abs(y - middle) < 10)) context.fillText(row.name, left - 6, middle, widest);
      }
      context.fillStyle = ground;
      context.fillRect(0, 0, left - 1, AXIS_PX);
      const cut = printing ? groups.filter((group) => AXIS_PX + group.bottom > height).length : 0;
      if (cut) {
        context.fillRect(0, height - 18, left + plotWidth() + 6, 18);
        context.fillStyle = soft;
        context.font = "11px system-ui, sans-serif";
        context.textAlign = "left";
        context.fillText(`… and ${cut} more below, which this sheet does not hold`, 5, height - 8);
      }
    }

    function setWindow(newFrom, newTo, quiet = false) {
      const span = Math.min(Math.max(newTo - newFrom, MIN_WINDOW_MS), end - begin);
      from = Math.max(begin, Math.min(newFrom, end - span));
      to = from + span;
      invalidate();
      if (!quiet) options.onWindow?.(from, to);
    }
    const zoomAt = (time, factor) => setWindow(time - (time - from) * factor, time + (to - time) * factor);
    const pan = (share) => setWindow(from + share * (to - from), to + share * (to - from));

    // What lies at a point of the element: a box, or a moment of a line.
    function hitAt(x, y) {
      if (x < gutter() || y < AXIS_PX) return null;
      const time = toTime(x), slack = HIT_PX * (to - from) / plotWidth();
      for (const row of rows) {
        const top = AXIS_PX + row.top - element.scrollTop;
        if (y < top || y >= top + row.height + ROW_GAP_PX) continue;
        if (row.line) return { row, time };
        const share = Math.min(0.999, (y - top) / row.height);
        for (let level = 0; level < row.tracks.length; level++) {
          const [offset, height] = extent(row, level);
          if (share < offset || share >= offset + height) continue;
          const box = tracks.boxAt(row.tracks[level], time, slack, hidden);
          if (box >= 0) return { row, box, boxes: row.tracks[level].boxes, time };
        }
        return null;
      }
      return null;
    }
    const hitText = (hit) => {
      if (!hit) return null;
      if (!hit.row.line) return hit.row.describe(hit.box);
      const point = hit.row.line.points.findLast(([time]) => time <= hit.time);
      return point ? hit.row.describe(hit.time, point) : null;
    };
    const place = (event) => {
      const box = element.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };

    // The group whose name lies at a point of the gutter, and whether its star does; null for none.
    const nameAt = (x, y) => {
      if (x >= gutter() || y < AXIS_PX) return null;
      const top = y - AXIS_PX + scrolled(), group = groups.find((one) => one.toggle && top >= one.top && top < one.bottom);
      return group ? { group, isStar: Boolean(group.star) && x >= group.star[0] - 3 && x <= group.star[1] + 3 } : null;
    };
    const nameText = (found) => (found ? [found.isStar ? (found.group.pinned ? "unpin" : "pin to the top")
      : found.group.compact ? "click: all its rows" : "click: one line", found.group.remark].filter(Boolean).join("\n") : null);

    // ---- mouse and touch
    const pointers = new Map(); // pointers that are down, with their last position
    let pressed = null; // where the first went down, and the window then
    element.onpointerdown = (event) => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      if (x > element.clientWidth) return; // the scroll bar
      pointers.set(event.pointerId, [x, y]);
      const selectsArea = Boolean(options.area) && (event.shiftKey || options.selectsArea?.()) && x >= gutter() && y >= AXIS_PX;
      if (pointers.size === 1) pressed = { x, y, moved: false, selectsArea };
      if (selectsArea && event.pointerType !== "mouse") element.setPointerCapture(event.pointerId);
    };
    element.onpointermove = (event) => {
      const [x, y] = place(event), before = pointers.get(event.pointerId);
      mouseX = x;
      if (!before) {
        const name = nameAt(x, y);
        element.style.cursor = name ? "pointer" : "";
        if (event.pointerType === "mouse") showTip(name ? nameText(name) : hitText(hitAt(x, y)), event.clientX, event.clientY);
        return;
      }
      if (pressed && !pressed.moved && Math.hypot(x - pressed.x, y - pressed.y) < CLICK_PX) return;
      if (pressed && !pressed.moved) {
        pressed.moved = true;
        if (event.pointerType === "mouse") element.setPointerCapture(event.pointerId);
      }
      showTip(null);
      const others = [...pointers].filter(([id]) => id !== event.pointerId);
      if (pressed?.selectsArea) {
        const rowTop = (at) => Math.max(0, at - AXIS_PX + scrolled());
        area = { from: toTime(pressed.x), to: toTime(Math.max(x, gutter())), top: rowTop(pressed.y), bottom: rowTop(y) };
        invalidate();
      } else if (others.length) { // two fingers: the moments under them stay under them
        const [otherX] = others[0][1], apartBefore = Math.abs(before[0] - otherX), apart = Math.max(10, Math.abs(x - otherX));
        zoomAt(toTime((x + otherX) / 2), Math.max(0.2, apartBefore / apart));
      } else {
        pan((before[0] - x) / plotWidth());
        if (event.pointerType === "mouse") element.scrollTop -= y - before[1];
      }
      pointers.set(event.pointerId, [x, y]);
    };
    element.onpointerup = element.onpointercancel = (event) => {
      const [x, y] = place(event), wasClick = event.type === "pointerup" && pressed && !pressed.moved && pointers.has(event.pointerId);
      pointers.delete(event.pointerId);
      if (pressed?.selectsArea && pressed.moved && area) {
        const [start, stop] = [area.from, area.to].sort((a, b) => a - b), [top, bottom] = [area.top, area.bottom].sort((a, b) => a - b);
        area = { from: start, to: stop, top, bottom };
        options.area({ from: start, to: stop, rows: rows.filter((row) => row.top < bottom && row.top + row.height > top) });
      }
      if (!wasClick) return;
      pressed = null;
      const name = nameAt(x, y);
      if (name) {
        showTip(null);
        if (name.isStar) name.group.pin(name.group); else name.group.toggle(name.group);
        return;
      }
      clearArea();
      const hit = hitAt(x, y);
      if (event.pointerType !== "mouse") showTip(hitText(hit), event.clientX, event.clientY);
      if (hit && !hit.row.line) {
        cursor = { row: rows.indexOf(hit.row), box: hit.box };
        options.select?.(hit);
      } else options.select?.(null);
    };
    element.onpointerleave = () => { showTip(null); mouseX = null; };
    element.ondblclick = (event) => {
      const hit = hitAt(...place(event));
      if (hit && !hit.row.line) options.open?.(hit);
    };
    element.onscroll = () => { showTip(null); invalidate(); };
    // The wheel scrolls until the chart is in hand (focused); then it zooms. With Ctrl it always zooms.
    element.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!event.ctrlKey && !sideways && document.activeElement !== element) return;
      event.preventDefault();
      const [x] = place(event);
      if (sideways) pan((event.deltaX || event.deltaY) / plotWidth());
      else zoomAt(toTime(Math.max(gutter(), x)), Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.0025));
    }, { passive: false });

    // ---- keys
    const describeCursor = () => {
      const row = rows[cursor.row], boxes = row.tracks[0].boxes, middle = (boxes.start[cursor.box] + boxes.end[cursor.box]) / 2;
      if (middle < from || middle > to) setWindow(middle - (to - from) / 2, middle + (to - from) / 2);
      revealRow(row);
      const area = element.getBoundingClientRect(), y = area.top + AXIS_PX + row.top - element.scrollTop + row.height / 2;
      showTip(row.describe(cursor.box), area.left + toX(middle), y);
      announce(tip.textContent);
      options.move?.({ row, box: cursor.box, boxes });
    };
    const revealRow = (row) => {
      const top = row.top - 4, bottom = row.top + row.height + AXIS_PX + 4, context = 80; // some of the rows around it
      if (element.scrollTop > top) element.scrollTop = top - context;
      else if (element.scrollTop + element.clientHeight < bottom) element.scrollTop = bottom - element.clientHeight + context;
    };
    // Scroll so that a group is seen, at the top if it is higher than the chart.
    const revealGroup = (group) => {
      const room = element.clientHeight - AXIS_PX, height = group.bottom - group.top;
      if (group.top >= element.scrollTop && group.bottom <= element.scrollTop + room) return;
      element.scrollTop = Math.max(0, height > room ? group.top : group.top - (room - height) / 2);
    };
    // The next or previous box of a row by start, over all its tracks.
    const neighbour = (row, box, direction) => {
      let best = -1;
      const time = box === null ? -Infinity : row.tracks[0].boxes.start[box];
      for (const track of row.tracks) {
        const { boxes, index } = track;
        let i = box === null ? (direction > 0 ? 0 : track.count - 1) : tracks.firstAbove(track.start, time) - 1 + (direction > 0 ? 1 : 0);
        while (i >= 0 && i < track.count
          && (hidden.has(boxes.kind[index[i]]) || index[i] === box || (direction < 0 && boxes.start[index[i]] >= time))) i += direction;
        if (i < 0 || i >= track.count) continue;
        const sooner = best < 0 || direction * (boxes.start[index[i]] - boxes.start[best]) < 0;
        if (sooner) best = index[i];
      }
      return best;
    };
    const moveInRow = (direction) => {
      if (!rows.length) return;
      cursor ??= { row: rows.findIndex((row) => !row.line), box: null };
      const next = rows[cursor.row].line ? -1 : neighbour(rows[cursor.row], cursor.box, direction);
      if (next < 0) return;
      cursor.box = next;
      describeCursor();
    };
    const moveToRow = (direction) => {
      let next = (cursor?.row ?? 0) + direction;
      while (rows[next]?.line || rows[next]?.tracks.length === 0) next += direction;
      if (!rows[next]) return;
      cursor = { row: next, box: null };
      moveInRow(1);
    };
    const cursorHit = () => ({ row: rows[cursor.row], box: cursor.box, boxes: rows[cursor.row].tracks[0].boxes });
    const centre = () => (mouseX !== null && mouseX > gutter() ? toTime(mouseX) : (from + to) / 2);
    const keys = {
      w: () => zoomAt(centre(), 2 / 3), s: () => zoomAt(centre(), 1.5), a: () => pan(-0.2), d: () => pan(0.2),
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), ArrowUp: () => moveToRow(-1), ArrowDown: () => moveToRow(1),
      "+": () => zoomAt((from + to) / 2, 2 / 3), "=": () => zoomAt((from + to) / 2, 2 / 3),
      "-": () => zoomAt((from + to) / 2, 1.5), 0: () => setWindow(begin, end),
      PageDown: () => { element.scrollTop += element.clientHeight - 2 * AXIS_PX; },
      PageUp: () => { element.scrollTop -= element.clientHeight - 2 * AXIS_PX; },
      n: () => moveInRow(1), p: () => moveInRow(-1), Escape: () => { showTip(null); clearArea(); options.select?.(null); },
      Enter: () => { if (cursor && cursor.box !== null) (options.enter || options.open)?.(cursorHit()); },
      ...options.keys,
    };
    element.onkeydown = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return; // shortcuts of the browser
      const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    element.onblur = () => showTip(null);

    const clearArea = () => { area = null; invalidate(); };
    const setGroups = (newGroups) => { groups = newGroups; cursor = null; layout(); };
    const setShown = (kinds, shown) => {
      for (const kind of kinds) if (shown) hidden.delete(kind); else hidden.add(kind);
      invalidate();
    };
    layout();
    return {
      element, hidden, resize: layout, render, invalidate, setWindow, setGroups, setShown, toX, revealRow, revealGroup, axisPx: AXIS_PX, forgetBins: () => {
        for (const row of rows) row.tracks?.forEach(tracks.forget);
      },
      window: () => [from, to], rows: () => rows, frameMs: () => lastFrameMs,
      clearArea, cursorGroup: () => rows[cursor?.row]?.group ?? null,
      moveCursor: (row, box) => { cursor = { row: rows.indexOf(row), box }; },
    };
  }

  // Draw the legend: one button per name, which switches all kinds of that name (chunks differ only in shade).
  function drawLegend(element, chart, kinds, note = "") {
    const entries = new Map(); // name → { colour, kinds }
    kinds.forEach(({ name, colour }, kind) => {
      if (!name) return;
      if (entries.has(name)) entries.get(name).kinds.push(kind); else entries.set(name, { colour, kinds: [kind] });
    });
    element.replaceChildren(...[...entries].map(([name, entry]) => {
      const button = document.createElement("button"), key = document.createElement("i");
      if (entry.colour.startsWith("#")) key.style.background = entry.colour; else key.className = entry.colour;
      button.append(key, name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!chart.hidden.has(entry.kinds[0])));
      button.onclick = () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        chart.setShown(entry.kinds, shown);
      };
      return button;
    }));
    if (note) element.append(note);
  }

  // Draw charts for paper: light, all rows, at the paper's width, and at once, because no frame comes while a page is printed.
  // Browsers tell before they print (beforeprint), others only change the medium; after it, charts are as before.
  function drawOnPaper(getCharts) {
    const draw = (onPaper) => {
      if (printing === onPaper) return;
      printing = onPaper;
      document.documentElement.classList.toggle("printing", onPaper);
      for (const chart of getCharts()) {
        chart.resize();
        chart.render();
      }
    };
    addEventListener("beforeprint", () => draw(true));
    addEventListener("afterprint", () => draw(false));
    matchMedia("print").addEventListener("change", ({ matches }) => draw(matches));
    if (matchMedia("print").matches) draw(true);
  }

  return { create, drawLegend, drawOnPaper, announce, showTip, timeText, grouped };
})();
