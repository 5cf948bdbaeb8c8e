// GraphQL over HTTP, judged by others: all audits of npm's graphql-http, MAY and SHOULD included, and the checks that those
// leave out (forgery, methods, media types, floods, leaks, CORS). Needs LARGESSE_BIN, as the browser tests do.

import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { startDemo } from '../browser/demo.mjs';
import { check } from './check.mjs';

test('every audit of GraphQL over HTTP passes', { timeout: 120_000 }, async () => {
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-conformance-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    const asAlice = `Authorization: Bearer ${members[0].token}`;

    const audits = await check('graphql-http-audit.mjs', `${origin}/graphql`, asAlice, '--strict');
    assert.match(audits.printed, /^61 passed, 0 failed$/m, audits.printed);
    assert.equal(audits.code, 0);

    const mutation = '--mutation=mutation { claimSignupBonus { userErrors { code } } }';
    const beyond = await check('http-extra.mjs', `${origin}/graphql`, asAlice, mutation);
    assert.match(beyond.printed, /^31 passed, 0 failed$/m, beyond.printed);
    assert.equal(beyond.code, 0);
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});
