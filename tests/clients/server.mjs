// A server of the test's own with short cooldowns, whose books are audited at its end. Needs LARGESSE_BIN, the path of the built
// binary.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

/** The shortest that the server allows for these limits, so that no test waits five seconds for a cooldown. */
const SETTINGS = {
  LARGESSE_REQUEST_DEADLINE_MS: '2000',
  LARGESSE_DATABASE_STATEMENT_TIMEOUT_MS: '1000',
  LARGESSE_DATABASE_LOCK_TIMEOUT_MS: '750',
  LARGESSE_COOLDOWN_ACTIONS:
    '{ claimDailyBonus = { window_ms = 3500 }, claimSignupBonus = { window_ms = 3500 }, transfer = { window_ms = 3500 } }',
  LARGESSE_DAILY_BONUS_AMOUNTS: '[10, 15]',
  LARGESSE_SIGNUP_BONUS_AMOUNT: '100',
  LARGESSE_TOKEN_LEEWAY_SECONDS: '0',
  LARGESSE_TOKEN_SECRET: 'a secret of the tests, 32 bytes or more',
};

/** Starts one: its address, a token for any member, and what ends it. */
export async function startServer() {
  const folder = await mkdtemp(join(tmpdir(), 'largesse-clients-'));
  const binary = process.env.LARGESSE_BIN;
  assert.ok(binary, 'Set LARGESSE_BIN to the path of the built largesse binary.');
  const env = { PATH: process.env.PATH, DATABASE_URL: `sqlite:${join(folder, 'largesse.db')}`, ...SETTINGS };
  const options = { cwd: folder, env };
  const args = ['serve', '--migrate', '--listen', '127.0.0.1:0', '--log-format', 'json'];
  const server = spawn(binary, args, { ...options, stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = once(server, 'exit');
  const command = (...line) => promisify(execFile)(binary, line, options);
  const end = async () => {
    server.kill('SIGTERM');
    await ended;
    try {
      // It rejects, with what is wrong, where the books do not balance.
      await command('audit');
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  };
  const address = await readAddress(server.stderr);
  const token = async (member, lifetime = '1h') =>
    (await command('token', member, '--expires-in', lifetime)).stdout.trim();
  return { url: `http://${address}/graphql`, token, end };
}

async function readAddress(log) {
  const lines = createInterface({ input: log, signal: AbortSignal.timeout(30_000) });
  for await (const line of lines) {
    const { message, address } = JSON.parse(line);
    if (message === 'listening') {
      // The rest is read and dropped, lest a full pipe stop the server.
      log.resume();
      return address;
    }
  }
  throw new Error('The server ended, or 30 seconds passed, before it listened.');
}

/** Asks without any client: for what a test needs beforehand. */
export async function post(url, token, query, variables) {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${token}` };
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify({ query, variables }) });
  return answer.json();
}
