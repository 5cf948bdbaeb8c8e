// graphql-transport-ws, judged by others: npm's graphql-ws client and raw frames. Needs LARGESSE_BIN, as the browser tests do.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check, withDemo } from './check.mjs';

test('every check of graphql-transport-ws passes', { timeout: 120_000 }, () =>
  withDemo(async (origin, token) => {
    const { code, printed } = await check(
      'ws-check.mjs',
      `${origin.replace('http', 'ws')}/graphql`,
      `--token=Bearer ${token}`,
      '--subscription=subscription { walletChanged { entry { id } wallet { id version } } }',
      // One event comes at once; the next one only when the wallet moves.
      '--n=1',
      '--init-timeout-ms=8000',
    );
    assert.match(printed, /^25 passed, 0 failed$/m, printed);
    assert.equal(code, 0);
  }));
