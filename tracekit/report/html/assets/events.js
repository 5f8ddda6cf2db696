// The events of a run as the page holds them: each rank's columns, and descriptions that events share.
const runEvents = (() => {
  // Unpack a run's data. Returns { ranks, texts, describe…, labels, … }; ranks have start, end (ms), description, delay.
  async function load(data) {
    const { texts, columns: described, stream } = await columns.unpackJson(data.descriptions);
    const text = (column, number) => texts[described[column][number]] ?? null;
    const labelNumber = new Map(data.labels.map(({ name }, i) => [name, i]));
    const kindOfDescription = Uint8Array.from(described.label, (i) => labelNumber.get(texts[i]));
    const ranks = await Promise.all(data.ranks.map(async (packed) => {
      const events = await columns.unpackTimes(packed.events);
      events.kind = Uint8Array.from(events.description, (number) => kindOfDescription[number]);
      return {
        ...packed, events, kindOfDescription,
        memory: packed.memory ? memoryPoints(await columns.unpack(packed.memory)) : null,
        host: packed.host ? await columns.unpackTimes(packed.host) : null,
        operations: packed.operations ? indexed(await columns.unpack(packed.operations)) : new Map(),
        causes: packed.causes ? causesByEvent(await columns.unpack(packed.causes)) : new Map(),
        matches: packed.matches ? await columns.unpack(packed.matches) : { count: 0 },
      };
    }));
    const run = {
      data, ranks, texts, described, stream, text, kindOfDescription,
      rankIndex: new Map(ranks.map(({ rank }, i) => [rank, i])),
      members: null, // match → [[rank index, event], …], made at first use
    };
    return run;
  }

  // Memory as points of a line: [ms, GB allocated, GB reserved or null].
  function memoryPoints({ count, time, allocated, reserved }) {
    const toGb = (kib) => kib * 1024 / 1e9;
    return Array.from({ length: count }, (_, i) => [time[i] / 1e3, toGb(allocated[i]), reserved[i] ? toGb(reserved[i] - 1) : null]);
  }

  // Operations by the number of their event; waits are -1 where unknown.
  function indexed({ count, event, hidden, wait, size }) {
    const byEvent = new Map();
    for (let i = 0; i < count; i++) {
      byEvent.set(event[i], { hidden: hidden[i] / 1e4, wait: wait[i] ? (wait[i] - 1) / 1e4 : null, kib: size[i] ? size[i] - 1 : null });
    }
    return byEvent;
  }

  // The causes of exposed time by the number of the event: [[cause, ms], …], the longest first.
  function causesByEvent({ count, event, cause, time }) {
    const byEvent = new Map();
    for (let i = 0; i < count; i++) {
      if (!byEvent.has(event[i])) byEvent.set(event[i], []);
      byEvent.get(event[i]).push([cause[i], time[i] / 1e4]);
    }
    for (const causes of byEvent.values()) causes.sort((a, b) => b[1] - a[1]);
    return byEvent;
  }

  // The events on other ranks that took part in the same operation: [[rank index, event], …].
  function partners(run, rankIndex, event) {
    if (!run.members) {
      run.members = new Map();
      run.ranks.forEach(({ matches }, r) => {
        for (let i = 0; i < matches.count; i++) {
          const key = matches.match[i];
          if (!run.members.has(key)) run.members.set(key, []);
          run.members.get(key).push([r, matches.event[i]]);
        }
      });
    }
    const { matches } = run.ranks[rankIndex], others = new Map();
    for (let i = 0; i < matches.count; i++) {
      if (matches.event[i] !== event) continue;
      for (const [r, e] of run.members.get(matches.match[i])) if (r !== rankIndex) others.set(`${r}.${e}`, [r, e]);
    }
    return [...others.values()];
  }

  // A search: words that must all be found, each in a name, label, module, range, operator, input or source line; "label:x",
  // "name:x", "module:x", "range:x", "op:x", "inputs:x", "pass:x", "rank:x", "role:x" look in one place only; ">5ms" or "<20us" asks for a duration (label:x,y: either); "…" keeps spaces together; = asks for the whole text.
  const PLACES = { label: ["label"], pass: ["pass"], name: ["name"], module: ["module"], range: ["annotations"], op: ["chain"], inputs: ["inputs"], source: ["source"] };
  const ANYWHERE = ["name", "label", "module", "annotations", "chain", "source", "inputs"];
  const UNITS_MS = { ns: 1e-6, us: 1e-3, "µs": 1e-3, ms: 1, s: 1000 };
  // A duration such as >5ms, >=20us or <1s (ms without a unit), as a test of a length in ms; null if the word is none.
  function durationTest(word) {
    const found = word.match(/^([<>]=?)(\d+(?:\.\d+)?)(ns|us|µs|ms|s)?$/i);
    if (!found) return null;
    const limit = Number(found[2]) * UNITS_MS[(found[3] ?? "ms").toLowerCase()];
    return { ">": (length) => length > limit, ">=": (length) => length >= limit, "<": (length) => length < limit, "<=": (length) => length <= limit }[found[1]];
  }
  function parse(query) {
    const words = query.match(/(?:[^\s"]|"[^"]*")+/g) || [];
    return words.map((word) => {
      const isLong = durationTest(word);
      if (isLong) return { place: "duration", text: word, isLong };
      const [, place, rest] = word.match(/^(label|pass|name|module|range|op|inputs|source|rank|role):(.*)$/) || [null, null, word];
      const plain = rest.replaceAll('"', ""), whole = plain.startsWith("=");
      return { place, text: (whole ? plain.slice(1) : plain).toLowerCase(), whole };
    }).filter(({ text }) => text);
  }

  const isIn = (text, part, whole) => (whole ? text === part : text.includes(part));
  // Return the descriptions that match (as a mask), the ranks that are asked for (or null) and the host names that match.
  function search(run, query, role) {
    const words = parse(query), ranks = words.filter(({ place }) => place === "rank").map(({ text }) => Number(text));
    const others = words.filter(({ place }) => !["rank", "role", "duration"].includes(place));
    const durations = words.filter(({ place }) => place === "duration"), isLong = (length) => durations.every((word) => word.isLong(length));
    const isOfRole = words.every(({ place, text }) => place !== "role" || role.toLowerCase() === text);
    const matchesWord = run.texts.map((text) => others.map(({ place, text: part, whole }) => {
      const lower = text.toLowerCase();
      return place === "label" ? part.split(",").some((label) => isIn(lower, label, whole)) : isIn(lower, part, whole);
    }));
    const count = run.stream.length, mask = new Uint8Array(count);
    for (let number = 0; number < count; number++) {
      mask[number] = words.length && isOfRole && others.every(({ place }, word) => (PLACES[place] || ANYWHERE).some((column) => {
        const text = run.described[column][number];
        return text >= 0 && matchesWord[text][word];
      })) ? 1 : 0;
    }
    const namesHost = isOfRole && others.length > 0 && others.every(({ place }) => place === null || place === "name" || place === "range");
    const hostMask = run.texts.map((_, text) => (namesHost && matchesWord[text].every(Boolean) ? 1 : 0));
    return { mask, hostMask, isLong, ranks: ranks.length ? new Set(ranks) : null };
  }

  // The same kernel (name) on each rank in one step: count, median and longest, and the nth occurrence there.
  function occurrences(run, rankIndex, event, step, shift) {
    const name = run.described.name[run.ranks[rankIndex].events.description[event]];
    const isName = run.described.name.map((text) => text === name);
    const listOf = ({ events, steps }) => {
      const list = [], window = steps.find((entry) => entry.step === step);
      const from = window ? window.from_ms + shift : -Infinity, to = window ? window.to_ms + shift : Infinity;
      for (let i = tracks.firstAbove(events.start, from - 1e-9); i < events.count && events.start[i] <= to; i++) {
        if (isName[events.description[i]]) list.push(i);
      }
      return list;
    };
    const nth = listOf(run.ranks[rankIndex]).indexOf(event);
    return run.ranks.map((rank, r) => {
      const list = listOf(rank), { events } = rank;
      const lengths = Float64Array.from(list, (i) => events.end[i] - events.start[i]).sort();
      return {
        rank: rank.rank, rankIndex: r, count: list.length, list, nth: list[nth] ?? -1,
        median: lengths.length ? lengths[lengths.length >> 1] : null, longest: lengths.at(-1) ?? null,
      };
    });
  }

  // A kernel's name without return type, namespaces, template arguments and parameters.
  const shortName = (name) => {
    const plain = (name || "").replaceAll("(anonymous namespace)::", "").replace(/^void /, "").replace(/[<(].*/s, "");
    return plain.split("::").pop() || name || "";
  };

  return { load, partners, search, occurrences, shortName };
})();
