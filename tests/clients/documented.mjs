// The modules of docs/clients.md, exactly as they stand there.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const TEXT = readFileSync(join(HERE, '../../docs/clients.md'), 'utf8');

/** Every fenced block that has a file name, by that name. */
const blocks = new Map([...TEXT.matchAll(/^```\w+ (\S+)\n(.*?)^```$/gms)].map(([, name, text]) => [name, text]));

/** A folder beside this file, where the packages are found, for as long as the process lives. */
export function folder() {
  const path = mkdtempSync(join(HERE, '.run-'));
  process.on('exit', () => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Writes these blocks, or all, into a folder. */
export function write(into, names = [...blocks.keys()]) {
  for (const name of names) {
    if (!blocks.has(name)) throw new Error(`docs/clients.md has no block named ${name}`);
    writeFileSync(join(into, name), blocks.get(name));
  }
}

let modules;

/** Imports one of them; they import each other. */
export function documented(name) {
  if (!modules) write((modules = folder()));
  return import(pathToFileURL(join(modules, name)));
}
