// Compares what Perfetto's trace processor says of traces with their events.
//
//     node tests/profiler/perfetto.mjs PROCESSOR FOLDER
//
// PROCESSOR has the processor built for browsers: trace_processor.wasm, what loads it, and what speaks with it. FOLDER has a
// trace of each communicator of each rank. Each is loaded by itself, then all as one as the manual's jq makes it. Prints a line of JSON: the
// processor's version, and for each load the number of slices and their time by name, as the events say ("ours") and as
// the processor does ("theirs"); slices that it nests otherwise; rows it calls otherwise; errors of its import. Whoever calls
// compares them.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";

async function main() {
  if (process.argv.length !== 4) {
    throw new Error("usage: perfetto.mjs PROCESSOR FOLDER");
  }
  const [processor, folder] = process.argv.slice(2);
  // It speaks on standard output.
  console.log = console.warn = console.error;
  const wasm = readFileSync(join(processor, "trace_processor.wasm"));
  const engine = await start(processor, wasm);
  const traces = readdirSync(folder).filter((name) => name.endsWith(".json")).sort()
    .map((name) => readFileSync(join(folder, name)));
  const events = traces.map((trace) => JSON.parse(trace).traceEvents);
  const traceEvents = events.flatMap((own, file) => own.map((event) => numbered(event, file)));
  const all = { trace: Buffer.from(JSON.stringify({ traceEvents })), events: traceEvents };
  const loads = [];
  for (const load of [...traces.map((trace, at) => ({ trace, events: events[at] })), all]) {
    loads.push(await compare(engine, load));
  }
  const version = wasm.toString("latin1").match(/v\d+\.\d+-[0-9a-f]{6,}/)?.[0];
  process.stdout.write(JSON.stringify({ version, loads }) + "\n");
}

// An event whose ids, which are its file's own, differ from those of other files.
function numbered(event, file) {
  const { id, parent } = event.args;
  const other = (id) => id === undefined ? undefined : `${file}.${id}`;
  return { ...event, args: { ...event.args, id: other(id), parent: other(parent) } };
}

// The processor, in this thread: what is sent to it is answered before the sending returns.
async function start(processor, wasm) {
  const { EngineBase } = await import(pathToFileURL(join(processor, "engine.mjs")));
  // The scope of a browser's worker, which its loader expects.
  const scope = { self: globalThis, WorkerGlobalScope: Object, location: pathToFileURL(processor + "/"), wasm };
  for (const [name, value] of Object.entries(scope)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
  }
  const ready = new Promise((resolve) => { globalThis.ready = resolve; });
  runInThisContext(adapted(readFileSync(join(processor, "engine_bundle.node.js"), "utf8")));
  await ready;
  const port = {};
  globalThis.onmessage({ data: port });
  class Engine extends EngineBase {
    mode = "WASM";
    id = "processor";

    rpcSendRequestBytes(data) {
      port.onmessage({ data });
    }
  }
  const engine = new Engine();
  port.postMessage = (data) => engine.onRpcResponseBytes(data);
  return engine;
}

// The loader, with the file's bytes instead of an address, 32 bits of memory as the file has, and a word when it is done.
function adapted(loader) {
  const changes = [
    ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
    ["locateFile: (s) => s,", "wasmBinary: self.wasm, locateFile: (s) => s,"],
    ["=> deferredRuntimeInitialized.resolve()", "=> { deferredRuntimeInitialized.resolve(); setTimeout(self.ready); }"],
  ];
  for (const [before, after] of changes) {
    if (!loader.includes(before)) {
      throw new Error(`the loader has no "${before}"`);
    }
    loader = loader.replace(before, after);
  }
  return loader;
}

async function compare(engine, { trace, events }) {
  await engine.resetTraceProcessor({
    cropTrackEvents: false, ingestFtraceInRawTable: false, analyzeTraceProtoContent: false,
    ftraceDropUntilAllCpusValid: false,
  });
  await engine.parse(new Uint8Array(trace));
  await engine.notifyEof();
  const ours = events.filter((event) => event.ph === "X");
  const theirs = await rows(engine, SLICES);
  return {
    slices: pair(ours.length, theirs.length),
    nested: ours.filter((event) => parentOnItsRow(event, byKey(ours))).length,
    deepest: Math.max(...theirs.map((slice) => slice.depth)),
    misnested: misnested(ours, theirs),
    times_us: times(ours, theirs),
    rows: pair(named(events), (await rows(engine, ROWS)).map((row) => row.name)),
    errors: await rows(engine, ERRORS),
  };
}

// Ours whose parent or depth the processor says otherwise, at most some.
function misnested(ours, theirs) {
  const events = byKey(ours);
  const slices = new Map(theirs.map((slice) => [key(slice.pid, slice.own), slice]));
  const byId = new Map(theirs.map((slice) => [slice.id, slice]));
  const found = [];
  for (const event of ours) {
    const slice = slices.get(key(event.pid, event.args.id));
    const outer = slice && byId.get(slice.parent_id);
    const parent = parentOnItsRow(event, events);
    if (!slice || slice.name !== event.name || slice.tid !== event.tid || slice.depth !== depth(event, events)
      || (outer?.own ?? null) !== (parent?.args.id ?? null)) {
      found.push({ event, slice, outer });
    }
  }
  return found.slice(0, 3);
}

// How many of an event's ancestors are around it on its row.
function depth(event, events) {
  const parent = parentOnItsRow(event, events);
  return parent ? 1 + depth(parent, events) : 0;
}

// What overlaps others is on a row beside its parent's.
function parentOnItsRow(event, events) {
  const parent = events.get(key(event.pid, event.args.parent));
  return parent?.tid === event.tid ? parent : undefined;
}

function times(ours, theirs) {
  const names = {};
  const add = (name, who, time) => {
    names[name] ??= pair(0, 0);
    names[name][who] += time;
  };
  ours.forEach((event) => add(event.name, "ours", event.dur));
  theirs.forEach((slice) => add(slice.name, "theirs", slice.dur / 1000));
  return names;
}

// The names of the rows that have slices.
function named(events) {
  const names = new Map(events.filter((event) => event.name === "thread_name")
    .map((event) => [key(event.pid, event.tid), event.args.name]));
  const used = new Set(events.filter((event) => event.ph === "X").map((event) => key(event.pid, event.tid)));
  return [...used].map((row) => names.get(row) ?? "").sort();
}

async function rows(engine, sql) {
  const result = await engine.query(sql);
  const found = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    found.push(Object.fromEntries(result.columns().map((column) => [column, plain(row.get(column))])));
  }
  return found;
}

function plain(value) {
  return typeof value === "bigint" ? Number(value) : value;
}

function byKey(ours) {
  return new Map(ours.map((event) => [key(event.pid, event.args.id), event]));
}

function key(pid, id) {
  return `${pid}.${id}`;
}

function pair(ours, theirs) {
  return { ours, theirs };
}

const SLICES = `select slice.id, slice.name, slice.dur, slice.depth, slice.parent_id, tid, pid,
  extract_arg(slice.arg_set_id, 'args.id') as own
  from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)`;
const ROWS = `select distinct coalesce(thread.name, '') as name, utid from slice join thread_track on slice.track_id = thread_track.id
  join thread using (utid) order by name`;
const ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";

await main();
