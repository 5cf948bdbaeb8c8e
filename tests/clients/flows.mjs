// What every client has to come through, whatever library it uses: double clicks, lost answers, refusals beside results.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { Kind, buildSchema, parse, separateOperations } from 'graphql';
import { answerInstead, badGateway, hold, lose, startProxy } from './lossy-proxy.mjs';
import { post, startServer } from './server.mjs';

const read = (path) => readFile(new URL(path, import.meta.url), 'utf8');

/** The product's documents by operation, each with the fragments that it uses. */
export const operations = separateOperations(parse(await read('../../operations/largesse.graphql')));

const schema = buildSchema(await read('../../schema.graphql'));
/** As the code generator writes it into possible-types.json. */
export const possibleTypes = Object.fromEntries(
  ['Node', 'UserError'].map((name) => [name, schema.getPossibleTypes(schema.getType(name)).map((type) => type.name)]),
);

const codes = (errors) => errors.map(({ extensions }) => extensions.code);
const wish = (key, amount = '30') => ({ input: { to: 'bob', amount, currency: 'PTS', idempotencyKey: key } });
const rootFields = ({ asked }) => {
  const [operation] = parse(asked.query).definitions.filter(({ kind }) => kind === Kind.OPERATION_DEFINITION);
  return operation.selectionSet.selections.map(({ name }) => name.value).filter((name) => name !== '__typename');
};

/** Two wishes in one document; only the second has a variable. */
const BOTH = parse(`mutation Both($input: TransferInput!) {
  daily: claimDailyBonus { claim { id } userErrors { __typename ...Told } }
  sent: transfer(input: $input) { replayed entry { id } wallet { id version } userErrors { __typename ...Told } }
}
fragment Told on UserError { code message }`);

/**
 * Registers the tests. `connect({ url, token, timeoutMs })` gives a client with
 * `mutate(document, variables, askAgain)` and `query(document)`, both of which tell `{ data, errors }`.
 */
export function flows(library, connect) {
  describe(library, { concurrency: true, timeout: 120_000 }, () => {
    let server, bob;
    const proxies = [];
    before(async () => {
      server = await startServer();
      bob = await server.token('bob');
      await post(server.url, bob, '{ viewer { id } }');
    });
    after(async () => {
      for (const proxy of proxies) await proxy.end();
      await server.end();
    });

    /** A member with 100 points, and a client of theirs behind a proxy. */
    async function member(name, options = {}) {
      const token = await server.token(name);
      await post(server.url, token, 'mutation { claimSignupBonus { claim { id } } }');
      const proxy = await startProxy(server.url);
      proxies.push(proxy);
      return { token, proxy, ...connect({ url: proxy.url, token: () => token, ...options }) };
    }

    test('a claim is clicked twice: one is paid, and both hear the truth', async () => {
      const { mutate, proxy } = await member('claire');
      const answers = await Promise.all([mutate(operations.ClaimDailyBonus), mutate(operations.ClaimDailyBonus)]);
      for (const { errors } of answers) assert.deepEqual(errors, []);
      const [paid, refused] = answers
        .map(({ data }) => data.claimDailyBonus)
        .sort((one, other) => one.userErrors.length - other.userErrors.length);
      assert.equal(paid.claim.amount.amount, '10');
      assert.deepEqual([paid.wallet.available.amount, refused.wallet.available.amount], ['110', '110']);
      const [{ __typename, claim }] = refused.userErrors;
      assert.deepEqual([__typename, claim.id], ['AlreadyClaimedError', paid.claim.id]);
      const cold = proxy.seen.filter(({ answered }) => answered.errors?.[0].extensions.code === 'COOLDOWN_ACTIVE');
      assert.ok(cold.length >= 1, 'the second click met the cooldown');
    });

    test('a transfer whose answer is lost is repeated and not paid again', async () => {
      const { mutate, query, proxy } = await member('tom');
      proxy.fates.push(lose);
      const { data, errors } = await mutate(operations.Transfer, wish('lunch'));
      assert.deepEqual(errors, []);
      const [first, ...repeats] = proxy.seen;
      assert.equal(first.answered.data.transfer.replayed, false, 'the lost answer was the payment');
      assert.equal(data.transfer.replayed, true);
      assert.equal(data.transfer.entry.id, first.answered.data.transfer.entry.id);
      assert.equal(repeats.length, 1, 'the repeat finds the answer, also within the window');
      for (const { asked } of repeats) assert.deepEqual(asked.variables, first.asked.variables);
      assert.equal((await query(operations.Home)).data.viewer.wallet.available.amount, '70');
    });

    test('an answer that never comes, and one of something in between', async () => {
      const { mutate, proxy } = await member('nora', { timeoutMs: 2000 });
      proxy.fates.push(hold, badGateway);
      const { data, errors } = await mutate(operations.Transfer, wish('dinner'));
      assert.deepEqual(errors, []);
      assert.equal(data.transfer.replayed, true);
      assert.equal(data.transfer.wallet.available.amount, '70');
    });

    test('a second wish in the same moment is not repeated behind the user', async () => {
      const { mutate, query, proxy } = await member('dora');
      const answers = await Promise.all([
        mutate(operations.Transfer, wish('click-1')),
        mutate(operations.Transfer, wish('click-2')),
      ]);
      assert.deepEqual(answers.flatMap(({ errors }) => codes(errors)), ['COOLDOWN_ACTIVE']);
      assert.equal(proxy.seen.length, 2);
      assert.equal((await query(operations.Home)).data.viewer.wallet.available.amount, '70');
    });

    test('a key that was kept may say so, and is asked to the end', async () => {
      const { mutate, proxy } = await member('kim');
      await mutate(operations.Transfer, wish('another'));
      const { data, errors } = await mutate(operations.Transfer, wish('kept'), { sentBefore: true });
      assert.deepEqual(errors, []);
      assert.ok(data.transfer.entry.id);
      assert.equal(proxy.seen.length, 3, 'one other payment, one refusal by the cooldown, one answer');
      const again = await mutate(operations.Transfer, wish('kept'));
      assert.equal(again.data.transfer.entry.id, data.transfer.entry.id);
      assert.equal(proxy.seen.length, 4, 'what was answered a moment ago is answered at once');
    });

    test('what was answered beside a refusal is kept, and only the refused is asked again', async () => {
      const { mutate, proxy } = await member('pat');
      await mutate(operations.ClaimDailyBonus);
      const { data, errors } = await mutate(BOTH, wish('beside'));
      assert.deepEqual(errors, []);
      assert.equal(data.sent.replayed, false);
      assert.ok(data.sent.entry.id);
      assert.deepEqual(data.daily.userErrors.map(({ code }) => code), ['ALREADY_CLAIMED']);
      const [, first, ...repeats] = proxy.seen;
      assert.deepEqual(rootFields(first), ['claimDailyBonus', 'transfer']);
      assert.ok(repeats.length >= 1);
      for (const repeat of repeats) {
        assert.deepEqual(rootFields(repeat), ['claimDailyBonus']);
        assert.doesNotMatch(repeat.asked.query, /\$input/);
      }
    });

    test('results are kept where the repeats come to nothing', async () => {
      const { mutate, proxy } = await member('rob', { askAgain: { tries: 2 } });
      await mutate(operations.ClaimDailyBonus);
      proxy.fates.push(undefined, lose);
      const { data, errors } = await mutate(BOTH, wish('alone'));
      assert.ok(data.sent.entry.id);
      assert.equal(data.daily, null);
      assert.deepEqual(codes(errors), ['COOLDOWN_ACTIVE']);
      assert.equal(proxy.seen.length, 3);
    });

    test('a refusal is an answer, and is not repeated', async () => {
      const { mutate, proxy } = await member('rita');
      const { data, errors } = await mutate(operations.Transfer, wish('too-much', '101'));
      assert.deepEqual(errors, []);
      const [{ __typename, available }] = data.transfer.userErrors;
      assert.deepEqual([__typename, available.amount], ['InsufficientFundsError', '100']);
      assert.equal(proxy.seen.length, 1);
    });

    test('a token that is not good is not repeated', async () => {
      const { mutate, proxy } = await member('mallory', { token: () => 'not.a.token' });
      const { errors } = await mutate(operations.ClaimDailyBonus);
      assert.deepEqual(codes(errors), ['UNAUTHENTICATED']);
      assert.equal(proxy.seen.length, 1);
    });

    test('an answer that comes late does not bring an old wallet back', async () => {
      const { mutate, query, proxy } = await member('wendy');
      await query(operations.Home);
      const [{ answered: old }] = proxy.seen;
      await mutate(operations.Transfer, wish('before'));
      proxy.fates.push(answerInstead(old));
      const { data } = await query(operations.Home);
      assert.equal(old.data.viewer.wallet.available.amount, '100');
      assert.equal(data.viewer.wallet.available.amount, '70');
      assert.equal(data.viewer.wallet.version, '2');
    });
  });
}
