// graphql-transport-ws, judged by others: npm's graphql-ws client and raw frames. Needs LARGESSE_BIN, as the browser tests do.

import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { startDemo } from '../browser/demo.mjs';
import { check } from './check.mjs';

test('every check of graphql-transport-ws passes', { timeout: 120_000 }, async () => {
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-conformance-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    const watch = 'subscription { walletChanged { entry { id } wallet { id version } } }';
    const { code, printed } = await check(
      'ws-check.mjs',
      `${origin.replace('http', 'ws')}/graphql`,
      `--token=Bearer ${members[0].token}`,
      `--subscription=${watch}`,
      // One event comes at once; the next one only when the wallet moves.
      '--n=1',
      '--init-timeout-ms=8000',
    );
    assert.match(printed, /^25 passed, 0 failed$/m, printed);
    assert.equal(code, 0);
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});
