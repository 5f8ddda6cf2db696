"use strict";
// Packed columns of integers: unpack(packed) reads what pack_columns in packed_columns.py wrote.
const columns = (() => {
  const inflate = async (base64) => {
    const text = atob(base64), bytes = new Uint8Array(text.length);
    // A plain loop: Uint8Array.from with a function is far slower.
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  };

  // A column is stored as planes: the lowest byte of every value, then the next byte of every value, and so on.
  // Signs are in the lowest bit (0, -1, 1, -2 …), and some columns hold differences between neighbours.
  function readColumn(bytes, offset, count, width, isDifference) {
    const values = isDifference ? new Float64Array(count) : new Int32Array(count);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      let bits = 0;
      for (let plane = width - 1; plane >= 0; plane--) bits = (bits << 8) | bytes[offset + plane * count + i];
      const value = (bits >>> 1) ^ -(bits & 1);
      sum += value;
      values[i] = isDifference ? sum : value;
    }
    return values;
  }

  // Return { count, [name]: values }; times stay in the packed unit (packed.unit_ns).
  async function unpack(packed) {
    const bytes = new Uint8Array(await inflate(packed.data)), unpacked = { count: packed.count };
    let offset = 0;
    for (const [name, width, isDifference] of packed.columns) {
      unpacked[name] = readColumn(bytes, offset, packed.count, width, isDifference);
      offset += width * packed.count;
    }
    return unpacked;
  }

  // The same with start and length turned into start and end in milliseconds.
  async function unpackTimes(packed) {
    const unpacked = await unpack(packed), msPerUnit = packed.unit_ns / 1e6, { start, length } = unpacked;
    const end = new Float64Array(packed.count);
    for (let i = 0; i < packed.count; i++) {
      end[i] = (start[i] + length[i]) * msPerUnit;
      start[i] *= msPerUnit;
    }
    return { ...unpacked, end, msPerUnit };
  }

  const unpackJson = async (base64) => JSON.parse(new TextDecoder().decode(await inflate(base64)));

  return { unpack, unpackTimes, unpackJson };
})();
