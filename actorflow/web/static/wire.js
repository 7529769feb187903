// The messages of the WebSocket, decoded. actorflow/web/wire.py describes them.

import { parse } from "./text.js";

const HEADER_BYTES = 32;
const FULL = 1, CALLS = 3;

/** Typed arrays straight on the message's buffer: nothing is copied. */
function decodeBinary(buffer) {
  const header = new DataView(buffer, 0, HEADER_BYTES);
  const count = header.getUint32(4, true);
  let offset = HEADER_BYTES;
  const take = (Type) => {
    const column = new Type(buffer, offset, count);
    offset += column.byteLength;
    return column;
  };
  if (header.getUint32(0, true) === CALLS) return decodeCalls(header, take);
  const states = decodeStates(header, take), failing = header.getUint32(28, true);
  const at = Math.ceil(offset / 4) * 4;
  states.failing = new Uint32Array(buffer, at, failing);
  states.failed = new Uint32Array(buffer, at + 4 * failing, failing);
  return states;
}

function decodeCalls(header, take) {
  return {
    type: "calls",
    lost: header.getUint32(8, true),
    time: header.getFloat64(16, true),
    revision: header.getUint32(24, true),
    start: take(Float64Array),
    node: take(Uint32Array),
    frame: take(Uint32Array),
    us: take(Float32Array),
    track: take(Uint16Array),
    failed: take(Uint8Array),
  };
}

function decodeStates(header, take) {
  return {
    type: "states",
    full: header.getUint32(0, true) === FULL,
    base: header.getUint32(8, true),
    seq: header.getUint32(12, true),
    time: header.getFloat64(16, true),
    revision: header.getUint32(24, true),
    index: take(Uint32Array),
    calls: take(Uint32Array),
    meanUs: take(Float32Array),
    lastUs: take(Float32Array),
    p50Us: take(Float32Array),
    p99Us: take(Float32Array),
    maxUs: take(Float32Array),
    state: take(Uint8Array),
    track: take(Uint8Array),
  };
}

export function decode(data) {
  return typeof data === "string" ? parse(data) : decodeBinary(data);
}
