// The policy of docs/clients.md by itself: what is asked again, when, how often, and what is kept.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { buildSchema, parse, print, validate } from 'graphql';
import { documented } from './documented.mjs';

const { Wish, fetchWithin, isFinal } = await documented('ask-again.mjs');
const { newestWallets } = await documented('newest-wallets.mjs');
const schema = buildSchema(await readFile(new URL('../../schema.graphql', import.meta.url), 'utf8'));

const CLAIM = parse('mutation { claimDailyBonus { claim { id } } }');
const TRANSFER = parse('mutation T($input: TransferInput!) { transfer(input: $input) { entry { id } } }');
const THREE = parse(`mutation Three($input: TransferInput!, $first: Int) {
  paid: transfer(input: $input) { ...Paid query { viewer { bonusClaims(first: $first) { ...Claims } } } }
  claimDailyBonus { query { viewer { bonusClaims(first: $first) { ...Claims } } } }
  claimSignupBonus { claim { id } }
}
fragment Paid on TransferPayload { entry { id } }
fragment Claims on BonusClaimConnection { nodes { id } }`);

const error = (code, path, more) => ({ message: 'm', path, extensions: { code, action: path?.[0], ...more } });
const cold = (action, retryAfterMs = 100, key = action) =>
  error('COOLDOWN_ACTIVE', [key], { action, retryAfterMs });
const refused = (...errors) => ({ data: Object.fromEntries(errors.map(({ path }) => [path[0], null])), errors });

test('it waits as long as the answer says, and backs off where nothing says', () => {
  const wait = new Wish(CLAIM).hear(refused(cold('claimDailyBonus', 4000)));
  assert.ok(wait >= 4000 && wait < 4100, `${wait}`);
  const wish = new Wish(CLAIM);
  const [first, second, third] = [wish.hear(null), wish.hear(null), wish.hear(null)];
  assert.ok(first >= 250 && first <= 750, `${first}`);
  assert.ok(second >= 500 && second <= 1500, `${second}`);
  assert.ok(third >= 1000 && third <= 3000, `${third}`);
});

test('it tries five times, and no wait is longer than a user has patience', () => {
  const wish = new Wish(CLAIM);
  const waits = Array.from({ length: 5 }, () => wish.hear(refused(cold('claimDailyBonus'))));
  assert.deepEqual(waits.map((wait) => wait !== null), [true, true, true, true, false]);
  assert.equal(new Wish(CLAIM).hear(refused(cold('claimDailyBonus', 60_000))), null);
});

test('each code that says so is asked again, and no other', () => {
  const asked = (code) => new Wish(CLAIM).hear(refused(error(code, ['claimDailyBonus'], { retryAfterMs: 1 }))) !== null;
  for (const code of ['COOLDOWN_ACTIVE', 'IDEMPOTENCY_CONCURRENT_REQUEST', 'OUTCOME_UNKNOWN', 'UNAVAILABLE']) {
    assert.ok(asked(code), code);
  }
  for (const code of ['FORBIDDEN', 'UNAUTHENTICATED', 'INTERNAL_SERVER_ERROR', 'BAD_USER_INPUT']) {
    assert.ok(!asked(code), code);
  }
});

test('a request that was not executed is asked again as it was', () => {
  const wish = new Wish(THREE);
  assert.ok(wish.hear({ errors: [error('UNAVAILABLE', undefined, { retryAfterMs: 1 })] }) !== null);
  assert.equal(wish.document, THREE);
  const data = { paid: {}, claimDailyBonus: {}, claimSignupBonus: {} };
  assert.equal(wish.hear({ data }), null);
  assert.deepEqual(wish.answer, { data, errors: [] });
});

test('a new key that meets the cooldown is not repeated, one that was at work is', () => {
  assert.equal(new Wish(TRANSFER).hear(refused(cold('transfer'))), null);
  assert.ok(new Wish(TRANSFER, { sentBefore: true }).hear(refused(cold('transfer'))) !== null);
  for (const code of [null, 'OUTCOME_UNKNOWN', 'IDEMPOTENCY_CONCURRENT_REQUEST']) {
    const wish = new Wish(TRANSFER);
    assert.ok(wish.hear(code && refused(error(code, ['transfer']))) !== null);
    assert.ok(wish.hear(refused(cold('transfer'))) !== null);
  }
  const wish = new Wish(TRANSFER);
  assert.ok(wish.hear(refused(error('UNAVAILABLE', ['transfer']))) !== null);
  assert.equal(wish.hear(refused(cold('transfer'))), null, 'nothing was done the first time, so this key is new');
});

test('of two transfers in one document the second is the second wish, whatever became of the first', () => {
  const two = parse('mutation { a: transfer(input: {}) { replayed } b: transfer(input: {}) { replayed } }');
  const wish = new Wish(two);
  assert.ok(wish.hear(refused(error('OUTCOME_UNKNOWN', ['a']), cold('transfer', 100, 'b'))) !== null);
  assert.match(print(wish.document), /a: transfer/);
  assert.doesNotMatch(print(wish.document), /b: transfer/);
  assert.equal(wish.hear({ data: { a: { replayed: true } } }), null);
  assert.deepEqual(wish.answer.data, { a: { replayed: true }, b: null });
  assert.deepEqual(wish.answer.errors.map(({ path }) => path), [['b']]);
});

test('what is asked again is a valid document of its own, and what was answered stays', () => {
  const wish = new Wish(THREE);
  assert.deepEqual(validate(schema, THREE), []);
  const forbidden = error('FORBIDDEN', ['claimSignupBonus']);
  wish.hear({
    data: { paid: { entry: { id: '1' } }, claimDailyBonus: null, claimSignupBonus: null },
    errors: [forbidden, cold('claimDailyBonus')],
  });
  assert.deepEqual(validate(schema, wish.document), []);
  const text = print(wish.document);
  assert.match(text, /mutation Three\(\$first: Int\)/);
  assert.match(text, /fragment Claims/);
  assert.doesNotMatch(text, /\$input|fragment Paid|claimSignupBonus/);
  assert.equal(wish.hear({ data: { claimDailyBonus: { query: {} } } }), null);
  assert.deepEqual(wish.answer, {
    data: { paid: { entry: { id: '1' } }, claimDailyBonus: { query: {} }, claimSignupBonus: null },
    errors: [forbidden],
  });
});

test('an error within a mutation is handed on, within a query it is asked again', () => {
  const within = {
    data: { claimDailyBonus: { wallet: null } },
    errors: [error('UNAVAILABLE', ['claimDailyBonus', 'wallet'])],
  };
  assert.equal(new Wish(CLAIM).hear(within), null);
  const query = new Wish(parse('{ viewer { wallet { id } } node(id: "1") { id } }'));
  const data = { viewer: { wallet: null }, node: null };
  assert.ok(query.hear({ data, errors: [error('UNAVAILABLE', ['viewer', 'wallet'])] }) !== null);
  assert.doesNotMatch(print(query.document), /node/);
});

test('root fields in a fragment are asked again together, or handed on', () => {
  const document = parse(`mutation { ...F }
    fragment F on Mutation { claimDailyBonus { claim { id } } claimSignupBonus { claim { id } } }`);
  const whole = new Wish(document);
  assert.ok(whole.hear(refused(cold('claimDailyBonus'), cold('claimSignupBonus'))) !== null);
  assert.equal(whole.document, document);
  const data = { claimDailyBonus: null, claimSignupBonus: { claim: { id: '1' } } };
  const part = new Wish(document);
  assert.equal(part.hear({ data, errors: [cold('claimDailyBonus')] }), null);
  assert.deepEqual(part.answer.data, data);
});

test('only the last word of HTTP ends it', () => {
  assert.deepEqual([undefined, 200, 401, 404, 408, 413, 429, 500, 502, 503].filter(isFinal), [401, 404, 413]);
});

test('a fetch gives up, by itself or when it is told', async (t) => {
  const server = createServer((request, response) => {
    if (request.url === '/whole') response.end('all');
    else if (request.url === '/half') response.write('half');
  });
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const at = (path) => `http://127.0.0.1:${server.address().port}${path}`;

  const whole = await fetchWithin(60_000)(at('/whole'));
  assert.deepEqual([whole.status, await whole.text()], [200, 'all']);
  for (const path of ['/never', '/half']) {
    await assert.rejects(fetchWithin(50)(at(path), {}), { name: 'TimeoutError' });
  }
  const told = new AbortController();
  const asking = fetchWithin(60_000)(at('/never'), { signal: told.signal });
  told.abort();
  await assert.rejects(asking, { name: 'AbortError' });
});

test('the newest wallet wins, wherever it stands in an answer', () => {
  const keep = newestWallets();
  const wallet = (version, amount, more) => ({ __typename: 'Wallet', id: 'w', version, available: { amount }, ...more });
  keep({ transfer: { wallet: wallet('10', '70') } });
  const others = { ...wallet('1', '5'), id: 'v' };
  const late = { viewer: { memberId: 'tom', wallets: [wallet('9', '100', { entries: [] }), others] } };
  const [mine, other] = keep(late).viewer.wallets;
  assert.deepEqual(mine, wallet('10', '70', { entries: [] }), 'ten is more than nine, and not less as texts are');
  assert.equal(other.available.amount, '5');
  assert.equal(late.viewer.wallets[0].version, '9', 'the answer itself is left alone');
  assert.deepEqual(keep(wallet('11', '40')), wallet('11', '40'));
  assert.equal(keep(null), null);
});
