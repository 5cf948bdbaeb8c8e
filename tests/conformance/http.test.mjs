// GraphQL over HTTP, judged by others: all audits of npm's graphql-http, MAY and SHOULD included, and the checks that those
// leave out (forgery, methods, media types, floods, leaks, CORS). Needs LARGESSE_BIN, as the browser tests do.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check, withDemo } from './check.mjs';

test('every audit of GraphQL over HTTP passes', { timeout: 120_000 }, () =>
  withDemo(async (origin, token) => {
    const asAlice = `Authorization: Bearer ${token}`;
    const audits = await check('graphql-http-audit.mjs', `${origin}/graphql`, asAlice, '--strict');
    assert.match(audits.printed, /^61 passed, 0 failed$/m, audits.printed);
    assert.equal(audits.code, 0);

    const mutation = '--mutation=mutation { claimSignupBonus { userErrors { code } } }';
    const beyond = await check('http-extra.mjs', `${origin}/graphql`, asAlice, mutation);
    assert.match(beyond.printed, /^31 passed, 0 failed$/m, beyond.printed);
    assert.equal(beyond.code, 0);
  }));
