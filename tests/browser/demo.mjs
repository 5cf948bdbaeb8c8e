// A demo of the test's own on a free port. Needs LARGESSE_BIN, the path of the built binary.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, constants } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

export function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function findBinary() {
  const binary = process.env.LARGESSE_BIN;
  assert.ok(binary, 'Set LARGESSE_BIN to the path of the built largesse binary.');
  assert.ok(isExecutable(binary), `LARGESSE_BIN is ${binary}, which is not an executable file.`);
  return binary;
}

/** Starts it with its files in a folder, and gives back its address; `after` gets what ends it. */
export async function startDemo(folder, after) {
  const binary = findBinary();
  const args = ['demo', '--listen', '127.0.0.1:0', '--database', join(folder, 'demo.db'), '--reset'];
  const demo = spawn(binary, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(demo, 'exit');
  after(async () => {
    demo.kill('SIGKILL');
    await ended;
  });
  return readAddress(demo.stdout);
}

async function readAddress(stdout) {
  const lines = createInterface({ input: stdout, signal: AbortSignal.timeout(30_000) });
  for await (const line of lines) {
    const [address] = line.match(/http:\/\/127\.0\.0\.1:\d+/) ?? [];
    if (address) {
      // The rest is read and dropped, lest a full pipe stop the server.
      stdout.resume();
      return address;
    }
  }
  throw new Error('The demo ended, or 30 seconds passed, before it printed its address.');
}
