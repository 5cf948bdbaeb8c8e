import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startDemo } from '../browser/demo.mjs';

/** Does something with a demo of its own: its address, and the token of its first member. */
export async function withDemo(use) {
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-conformance-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    await use(origin, members[0].token);
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
}

/** Runs one of the checkers beside this file, and gives back its exit code and what it printed. */
export async function check(script, ...args) {
  const path = fileURLToPath(new URL(script, import.meta.url));
  const child = spawn(process.execPath, [path, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  child.stdout.on('data', (chunk) => (printed += chunk));
  const [code] = await once(child, 'close');
  return { code, printed };
}
