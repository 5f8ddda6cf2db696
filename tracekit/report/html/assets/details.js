// The panel of a selected event: what it is, why it has its label, its launch, the same kernel on other ranks, the operation
// matched across ranks, the cause if it is exposed, and buttons that lead on.
const detailsPanel = (() => {
  const ms = (value) => `${value.toFixed(value < 0.1 ? 4 : 3)} ms`;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const element = (name, content, attributes = {}) => {
    const made = document.createElement(name);
    if (content !== undefined) made.append(...[content].flat());
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const button = (text, action, title = "") => {
    const made = element("button", text, { type: "button", ...(title ? { title } : {}) });
    made.onclick = action;
    return made;
  };
  const shellQuote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

  async function copy(text, shown) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // without the clipboard's permission: select the text, and let the browser copy the selection
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    shown.classList.add("done");
    setTimeout(() => shown.classList.remove("done"), 1500);
    charts.announce("copied");
  }
  const copyButton = (text, command) => {
    const made = button(text, () => copy(command, made), command);
    made.classList.add("copy");
    made.dataset.command = command;
    return made;
  };

  // Draw the panel of timeline.state.selected into `panel`; path is the traces' path for commands, or null.
  function draw(panel, timeline, selection, path) {
    panel.hidden = !selection;
    if (!selection) return;
    const { source, rank, event } = selection, { run } = source, { events } = rank, number = events.description[event];
    const text = (column) => run.text(column, number), name = text("name"), label = text("label");
    const start = events.start[event], end = events.end[event], length = end - start;
    const step = rank.steps.findLast(({ from_ms }) => from_ms + (source.shift || 0) <= start + 1e-5); // long runs count starts in steps of a few ns
    const facts = [], fact = (topic, content) => { if (content !== null && content !== "") facts.push([topic, content]); };
    const onRank = whereText(timeline, source, rank.rank);
    const stream = run.stream[number];
    fact("where", `${onRank}${step?.step != null ? `, step ${step.step}` : ""}${stream === null ? "" : `, stream ${stream}`}`);
    fact("when", whenText(events, event));
    const rule = text("rule");
    fact("label", [label, text("pass") && `${text("pass")} pass`, text("module") && `module ${text("module")}`].filter(Boolean).join(", ")
      + (rule && rule !== "other" ? `, by rule ${rule}` : name === null ? "" : ", no rule knows it"));
    const delay = events.delay[event];
    if (name !== null) {
      fact("launched", delay ? `${ms((delay - 1) / 1e4)} before it starts, at ${(start - (delay - 1) / 1e4).toFixed(4)} ms` : "not recorded");
    }
    fact("operators", text("chain"));
    fact("inputs", text("inputs"));
    fact("inside", text("annotations"));
    fact("source line", text("source"));
    const operation = rank.operations.get(event);
    const partners = timeline.partnersOf(selection);
    if (operation) {
      fact("transfer", operation.kib === null ? "" : `${operation.kib.toLocaleString("en")} KiB`);
      fact("hidden", `${percent(Math.min(1, operation.hidden / length))} by compute, ${ms(operation.hidden)}`);
      fact("waiting", operation.wait === null ? "unknown: no trace of its peer, or clocks not comparable"
        : operation.wait < 1e-4 ? "did not wait for other ranks"
          : `${ms(operation.wait)} for other ranks, ${ms(Math.max(0, length - operation.wait))} transfer`);
    }
    fact("exposed", exposureWords(run, rank, event, label, operation && Math.max(0, length - operation.hidden)));
    const piece = timeline.pieceOf(selection);
    if (piece >= 0) {
      const notes = source.path.texts[source.path.description[piece]].split("\n").slice(1);
      // The path joins kernels of one label that follow each other.
      const onPath = source.path.end[piece] - source.path.start[piece], row = onPath > 1.05 * length ? ` and the ${label} kernels in a row with it` : "";
      fact("critical path", [`runs through it${row} for ${ms(onPath)}`, ...notes].join("; "));
    } else if (source.path) fact("critical path", "does not run through it");
    const extra = timeline.factsOf?.(selection);
    if (extra) fact(...extra);

    const heading = element("h3", [element("i", undefined, { class: "key", style: `background:${colourOf(timeline, run, label)}` }),
      element("span", name === null ? `${label}: merged interval` : runEvents.shortName(name), { dir: "auto" })]);
    panel.replaceChildren(closeButton(timeline), heading);
    if (name !== null) panel.append(element("p", name, { class: "whole", dir: "auto" }));
    const [steps, table] = name === null ? [[], []] : sameKernel(timeline, selection, step);
    panel.append(element("div", [...steps, ...commands(timeline, selection, path, piece)], { class: "actions" }), factList(facts));
    const partnersTitle = timeline.isDiff ? "The same kernel in the other run" : "The same operation on other ranks";
    panel.append(element("div", [...(partners.length ? [partnerList(timeline, partners, partnersTitle)] : []), ...table]));
  }

  // The exposed time of an event by cause, in words; of a merged interval, that of its label on the rank. Exposed time that
  // several operations cover is counted once, with one of them: `exposed`, the event's own, may be more than its causes.
  function exposureWords(run, rank, event, label, exposed) {
    const ofLabel = Object.entries(rank.label_causes?.[label] ?? {}).map(([cause, ns]) => [cause, ns / 1e6]).sort((a, b) => b[1] - a[1]);
    const causes = ofLabel.length ? ofLabel : rank.causes.get(event) ?? [], counted = causes.reduce((sum, [, time]) => sum + time, 0);
    const elsewhere = ofLabel.length ? 0 : (exposed ?? 0) - counted;
    const parts = causes.map(([cause, time]) => {
      const [words, meaning] = run.data.causes[cause];
      return element("span", `${ms(time)} ${words}`, { class: "cause", title: meaning, tabindex: 0 });
    });
    if (elsewhere > 1e-3) parts.push(`${ms(elsewhere)} counted with another operation that runs at the same time`);
    if (!parts.length) return exposed === undefined ? null : "nothing of it";
    return [...parts.flatMap((part, i) => (i ? ["; ", part] : [part])), ofLabel.length ? ` (all ${label} of this rank)` : ""];
  }

  const colourOf = (timeline, run, label) => run.data.labels.find((entry) => entry.name === label)?.colour ?? "#888888";

  const closeButton = (timeline) => {
    const close = button("×", () => timeline.select(null), "close");
    close.className = "close";
    close.setAttribute("aria-label", "close the details");
    return close;
  };
  const factList = (facts) => element("dl", facts.flatMap(([topic, content]) => [element("dt", topic), element("dd", content, { dir: "auto" })]), { class: "facts" });
  const whereText = (timeline, source, rank) => `rank ${rank}${timeline.sources.length > 1 ? ` (${source.name})` : ""}`;
  const whenText = (boxes, i) => `${boxes.start[i].toFixed(4)} to ${boxes.end[i].toFixed(4)} ms, ${ms(boxes.end[i] - boxes.start[i])} long`;
  function drawFacts(panel, timeline, title, actions, facts) {
    panel.replaceChildren(closeButton(timeline), element("h3", title, { dir: "auto" }), element("div", actions, { class: "actions" }), factList(facts));
    panel.hidden = false;
  }

  const nextOnPath = (timeline, piece) => button("next longest on the critical path", () => timeline.selectLongestOnPath(piece));
  // The panel of a cell of the pipeline, or of a piece of the critical path that is no event: work of the host, or a launch.
  function drawShared(panel, timeline, lane, source, i, partners) {
    if (lane === "path") drawPiece(panel, timeline, source, i); else drawCell(panel, timeline, source, i, partners);
  }
  function drawCell(panel, timeline, source, i, partners) {
    const { cells } = source, name = `${timeline.kinds[cells.opKind[i]].cell}, stage ${cells.stage[i]}, micro-batch ${cells.microbatch[i]}`;
    const next = source.path ? [nextOnPath(timeline)] : [];
    const others = partners.map((other) => button(`the same cell ${other.source.name}`, () => timeline.showShared("cells", other.source, other.box, { reveal: true })));
    drawFacts(panel, timeline, `Cell: ${name}`,
      [button("zoom to it", () => timeline.chart.setWindow(cells.start[i] - length(cells, i), cells.end[i] + length(cells, i))), ...next, ...others],
      [["where", whereText(timeline, source, cells.rank[i])], ["when", whenText(cells, i)], ...[timeline.cellFacts?.(source, i)].filter(Boolean)]);
  }
  const length = (boxes, i) => boxes.end[i] - boxes.start[i];
  function drawPiece(panel, timeline, source, i) {
    const { path } = source, [what, ...notes] = path.texts[path.description[i]].split("\n"), kind = path.texts[path.what[i]];
    const [unrecorded, hostWork] = kind === "host" ? hostMeanwhile(source, i) : [0, []], isRecorded = unrecorded < length(path, i) / 2;
    const meanwhile = kind === "host" ? [...hostWork, ...gpuMeanwhile(timeline, source, i)] : [];
    const title = { host: "the host", unknown: "nothing was recorded" }[kind] ?? kind;
    const topic = kind === "unknown" ? "not recorded" : kind !== "host" ? kind : isRecorded ? "the host worked" : "the host";
    drawFacts(panel, timeline, `On the critical path: ${title}`, [nextOnPath(timeline, i), ...launchedAtEnd(timeline, source, i)],
      [["where", whereText(timeline, source, path.rank[i])], ["when", whenText(path, i)],
        [topic, isRecorded ? what : `no host activity was recorded here (${ms(unrecorded)}), ${what}`],
        ...(path.chain[i] >= 0 ? [["operators", path.texts[path.chain[i]]]] : []),
        ...(kind === "host" ? [["meanwhile", element("ul", meanwhile.map((text) => element("li", text)), { class: "plain" })]] : []),
        ...notes.map((note) => ["the path", note.replace("the path ", "")])]);
  }
  // A button to the event that the host launched at the end of a piece of the path; of several at once, the longest.
  function launchedAtEnd(timeline, source, i) {
    const { path, run } = source, rank = run.ranks[run.rankIndex.get(path.rank[i])], slack = 2e-4; // launches are kept in steps of 1e-4 ms
    if (!rank || !["host", "launch"].includes(path.texts[path.what[i]])) return [];
    const { start, end, delay, count } = rank.events;
    let best = -1, latest = path.start[i] - slack;
    for (let e = 0; e < count; e++) {
      const launch = start[e] - (delay[e] - 1) / 1e4, isLaunched = delay[e] && launch > latest - slack && launch < path.end[i] + slack;
      if (!isLaunched || (launch < latest + slack && best >= 0 && end[e] - start[e] <= end[best] - start[best])) continue;
      [best, latest] = [e, Math.max(latest, launch)];
    }
    const show = () => timeline.select({ source, rank, event: best }, { reveal: true });
    return best < 0 ? [] : [button("what it launched then", show, "the GPU event that the host launched at the end of this time")];
  }
  // What the host did during a piece of the critical path: the time without any record, and its ranges, operators and waiting
  // calls, the longest first.
  function hostMeanwhile({ run, path }, i) {
    const { host } = run.ranks[run.rankIndex.get(path.rank[i])] ?? {}, shares = new Map(), length = path.end[i] - path.start[i];
    let without = length, reach = path.start[i];
    for (let h = 0; h < (host?.count ?? 0) && host.start[h] < path.end[i]; h++) { // in order of start: their union
      const shared = Math.min(host.end[h], path.end[i]) - Math.max(host.start[h], path.start[i]);
      if (shared <= 0 || host.end[h] - host.start[h] > 4 * length) continue; // a range around a whole step says nothing
      const key = `${run.texts[host.name[h]]} (${run.data.host[host.lane[h]].name})`;
      shares.set(key, (shares.get(key) ?? 0) + shared);
      without -= Math.max(0, Math.min(host.end[h], path.end[i]) - Math.max(host.start[h], reach));
      reach = Math.max(reach, host.end[h]);
    }
    const parts = [...shares].sort((a, b) => b[1] - a[1]).slice(0, 5);
    return [without, [...parts, ["without an operator, range or waiting call on this page", without]].filter(([, time]) => time > 0.02 * length)
      .map(([name, time]) => `${ms(time)} ${name}`)];
  }
  // How long the rank had events on the GPU during a piece of the path, in each role.
  function gpuMeanwhile(timeline, source, i) {
    const { path } = source;
    return (timeline.isDiff ? [source] : timeline.sources).flatMap(({ role, run }) => {
      const { events } = run.ranks[run.rankIndex.get(path.rank[i])] ?? { events: { count: 0 } };
      let busy = 0, reach = path.start[i];
      for (let e = 0; e < events.count && events.start[e] < path.end[i]; e++) { // in order of start: their union
        busy += Math.max(0, Math.min(events.end[e], path.end[i]) - Math.max(events.start[e], reach));
        reach = Math.max(reach, events.end[e]);
      }
      return busy > 0 ? [`${ms(busy)} of GPU work${role ? ` of role ${role}` : ""} on this rank`] : [];
    });
  }
  // The panel of a range of the host.
  function drawHost(panel, timeline, source, rank, i) {
    const { run } = source, { host } = rank, name = run.texts[host.name[i]] ?? "";
    drawFacts(panel, timeline, name, [button("find all", () => timeline.find(`name:"=${name}"`), "search for this name on all ranks")],
      [["where", `${whereText(timeline, source, rank.rank)}, host, ${run.data.host[host.lane[i]].name}`], ["when", whenText(host, i)]]);
  }

  // The panel of an area: how busy its ranks were, and what ran by label and by kernel.
  function drawArea(panel, timeline, { from, to, ranks, count, rankMs, busy, labels, kernels }) {
    const run = timeline.sources[0].run, zoom = button("zoom to it", () => timeline.chart.setWindow(from, to));
    const rowOf = ({ name, label, count: events, ms: time, longest }) => element("tr", [
      element("th", [element("i", undefined, { class: "key", style: `background:${colourOf(timeline, run, label)}` }), name ? runEvents.shortName(name) : label],
        { scope: "row", title: name ?? label }),
      ...(name ? [element("td", label, { class: "word" })] : []),
      ...[events.toLocaleString("en"), ms(time), ms(longest), percent(rankMs ? time / rankMs : 0)].map((text) => element("td", text))]);
    const table = (caption, first, entries) => element("div", element("table", [element("caption", caption),
      element("thead", element("tr", [...first, "events", "time", "longest", "of the area"].map((head) => element("th", head, { scope: "col" })))),
      element("tbody", entries.map(rowOf))]), { class: "scroll" });
    const named = `${ranks.length > 1 ? "ranks" : "rank"} ${timelines.rankText(ranks)}`;
    drawFacts(panel, timeline, `Area: ${named}, ${ms(to - from)}`, [zoom],
      [["when", `${from.toFixed(4)} to ${to.toFixed(4)} ms`], ["events", `${count.toLocaleString("en")}; GPUs busy ${percent(rankMs ? busy / rankMs : 0)} of the area's time`]]);
    panel.append(element("div", table("By label, all ranks of the area together", ["label"], labels)),
      element("div", table("The kernels with the most time", ["kernel", "label"], kernels.slice(0, 8))));
  }

  function partnerList(timeline, partners, title) {
    const entries = partners.slice(0, 16).map((partner) => {
      const { events } = partner.rank, at = events.start[partner.event], run = timeline.sources.length > 1 ? `${partner.source.name}, ` : "";
      return element("li", button(`${run}rank ${partner.rank.rank}: ${at.toFixed(3)} ms, ${ms(events.end[partner.event] - at)}`,
        () => timeline.select(partner, { reveal: true }), "show it on the timeline"));
    });
    if (partners.length > 16) entries.push(element("li", `and ${partners.length - 16} more ranks`));
    return element("div", [element("h4", title), element("ul", entries, { class: "partners" })]);
  }

  // How the kernel does on each rank in this step, and buttons to its other occurrences.
  function sameKernel(timeline, selection, step) {
    const { source, rank, event } = selection, { run } = source, shift = source.shift || 0;
    const rows = runEvents.occurrences(run, run.ranks.indexOf(rank), event, step?.step, shift);
    const own = rows.find((row) => row.rank === rank.rank), nth = own.list.indexOf(event), { events } = rank;
    const go = (i) => () => timeline.select({ source, rank, event: i }, { reveal: true });
    const longest = own.list.reduce((best, i) => (events.end[i] - events.start[i] > events.end[best] - events.start[best] ? i : best), event);
    const steps = [
      ...(nth > 0 ? [button("‹ previous of this kernel", go(own.list[nth - 1]))] : []),
      ...(nth >= 0 && nth < own.list.length - 1 ? [button("next of this kernel ›", go(own.list[nth + 1]))] : []),
      ...(longest !== event ? [button("longest of this kernel", go(longest))] : []),
      button("find all", () => timeline.find(`name:"=${run.text("name", events.description[event])}"`), "search for this kernel on all ranks"),
    ];
    const others = rows.filter(({ count }) => count);
    const sameCount = others.every(({ count }) => count === own.count);
    const tableRows = others.map((row) => {
      const there = run.ranks[row.rankIndex].events;
      const same = row.nth >= 0 ? ms(there.end[row.nth] - there.start[row.nth]) : "–";
      return element("tr", [element("th", String(row.rank), { scope: "row" }), ...(sameCount ? [element("td", same)] : []), element("td", ms(row.median)),
        element("td", ms(row.longest)), element("td", String(row.count))], row.rank === rank.rank ? { class: "total" } : {});
    });
    const heads = ["rank", sameCount && "this occurrence", "median", "longest", "count"].filter(Boolean).map((head) => element("th", head, { scope: "col" }));
    const table = element("table", [element("caption", `This kernel in ${step?.step != null ? `step ${step.step}` : "the recording"}, rank by rank`),
      element("thead", element("tr", heads)), element("tbody", tableRows)]);
    return [steps, [element("div", table, { class: "scroll" })]];
  }

  function commands(timeline, selection, path, piece) {
    const { source, rank, event } = selection, { run } = source, { events } = rank;
    const traces = source.path_name ?? path, made = [], role = source.role ? ` --role ${shellQuote(source.role)}` : "";
    if (source.path) made.push(nextOnPath(timeline, piece < 0 ? undefined : piece));
    if (piece >= 0) {
      made.push(button("show on the critical path", () => {
        timeline.state.lanes.add("path");
        const span = Math.max(4 * (source.path.end[piece] - source.path.start[piece]), 1e-3), middle = source.path.start[piece];
        timeline.setRanks(timeline.ranks);
        timeline.chart.setWindow(middle - span / 2, middle + span);
      }));
    }
    const name = run.text("name", events.description[event]);
    if (traces && name !== null) {
      made.push(copyButton("copy --explain command", `tracekit analyze ${shellQuote(traces)}${role} --ranks ${rank.rank} --explain ${shellQuote(name)}`));
    }
    if (traces) {
      const origin = BigInt(run.data.origin_ns), shift = source.shift || 0;
      const nanoseconds = (time) => origin + BigInt(Math.round((time - shift) * 1e6));
      const at = `${nanoseconds(events.start[event])}:${nanoseconds(events.end[event])}`;
      made.push(copyButton("copy Perfetto command", `tracekit export --open ${shellQuote(traces)} --at ${at}`));
    }
    const link = copyButton("copy link to this moment", "");
    link.onclick = () => copy(timeline.link(), link);
    link.title = "the address of this file with this view; it works wherever the file is";
    made.push(link);
    return made;
  }

  return { draw, drawShared, drawHost, drawArea, copy };
})();
