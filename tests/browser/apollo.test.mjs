// Apollo Client with its normalised cache, as a page uses it: after a claim the documents of operations/ have read what
// changed, so the page shows the new balance and `claimable: false` without a reload.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ApolloClient, HttpLink, InMemoryCache } from '@apollo/client';
import { PersistedQueryLink } from '@apollo/client/link/persisted-queries';
import { parse, separateOperations } from 'graphql';
import { startDemo } from './demo.mjs';

/** The product's documents by operation, each with the fragments that it uses. */
const operations = separateOperations(
  parse(await readFile(new URL('../../operations/largesse.graphql', import.meta.url), 'utf8')),
);

/** What the page shows, each time that the cache makes it anew. */
function watchHome(client) {
  const shown = [];
  const page = client.watchQuery({ query: operations.Home });
  const subscription = page.subscribe(({ data }) => data?.viewer && shown.push(data.viewer));
  const until = async (condition) => {
    const deadline = Date.now() + 10_000;
    while (!(shown.length && condition(shown.at(-1)))) {
      assert.ok(Date.now() < deadline, `the page still shows ${JSON.stringify(shown.at(-1))}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    return shown.at(-1);
  };
  return { until, stop: () => subscription.unsubscribe() };
}

test('a claim changes the page without a reload', { timeout: 60_000 }, async () => {
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-apollo-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    const { token } = members.find(({ member }) => member === 'bob');
    const requests = [];
    const link = new HttpLink({
      uri: `${origin}/graphql`,
      headers: { authorization: `Bearer ${token}` },
      fetch: (url, options) => {
        requests.push(JSON.parse(options.body).operationName);
        return fetch(url, options);
      },
    });
    const client = new ApolloClient({ link, cache: new InMemoryCache({ possibleTypes: { UserError: [
      'PlainError', 'AlreadyClaimedError', 'InsufficientFundsError',
    ] } }) });
    const home = watchHome(client);
    cleanups.unshift(async () => home.stop());

    const before = await home.until(() => true);
    assert.deepEqual([before.wallet.available.amount, before.dailyBonus.claimable], ['0', true]);
    await client.mutate({ mutation: operations.ClaimDailyBonus });
    const claimed = await home.until(({ dailyBonus }) => !dailyBonus.claimable);
    assert.deepEqual([claimed.wallet.available.amount, claimed.dailyBonus.streak], ['10', 1]);
    await client.mutate({ mutation: operations.ClaimSignupBonus });
    await home.until(({ wallet }) => wallet.available.amount === '110');
    assert.deepEqual(requests, ['Home', 'ClaimDailyBonus', 'ClaimSignupBonus'], 'nothing was asked again');
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});

test('a document travels once, and then by its hash', { timeout: 60_000 }, async () => {
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-apollo-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    const { token } = members.find(({ member }) => member === 'bob');
    const requests = [];
    const http = new HttpLink({
      uri: `${origin}/graphql`,
      headers: { authorization: `Bearer ${token}` },
      fetch: (url, options) => {
        const { query } = options.body ? JSON.parse(options.body) : { query: new URL(url).searchParams.get('query') };
        requests.push(`${options.method} ${query ? 'text' : 'hash'}`);
        return fetch(url, options);
      },
    });
    const sha256 = (text) => createHash('sha256').update(text).digest('hex');
    const persisted = new PersistedQueryLink({ sha256, useGETForHashedQueries: true });
    // A new client for each: what one of them sent, the server knows from then on.
    for (const expected of [
      ['GET hash', 'POST text', 'POST hash', 'POST text'],
      ['GET hash', 'POST hash'],
    ]) {
      const client = new ApolloClient({ link: persisted.concat(http), cache: new InMemoryCache() });
      const { data } = await client.query({ query: operations.Home });
      assert.equal(data.viewer.memberId, 'bob');
      await client.mutate({ mutation: operations.ClaimDailyBonus, errorPolicy: 'all' });
      assert.deepEqual(requests.splice(0), expected);
    }
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});
