// Apollo Client 4 as docs/clients.md sets it up, against a running server.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { ApolloClient, ApolloLink, HttpLink, InMemoryCache, Observable } from '@apollo/client';
import { PersistedQueryLink } from '@apollo/client/link/persisted-queries';
import { documented } from './documented.mjs';
import { flows, operations, possibleTypes } from './flows.mjs';
import { startProxy } from './lossy-proxy.mjs';
import { startServer } from './server.mjs';

const { askAgainLink, makeClient } = await documented('apollo.mjs');

const told = ({ data, error }) => {
  if (error && !error.errors) throw error;
  return { data, errors: error?.errors ?? [] };
};

flows('Apollo Client', (options) => {
  const client = makeClient({ possibleTypes, ...options });
  return {
    mutate: async (mutation, variables, askAgain) =>
      told(await client.mutate({ mutation, variables, context: { askAgain } })),
    query: async (query) => told(await client.query({ query, fetchPolicy: 'network-only' })),
  };
});

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
  const server = await startServer();
  const token = await server.token('bob');
  const proxy = await startProxy(server.url);
  const client = makeClient({ url: proxy.url, token: () => token, possibleTypes });
  const home = watchHome(client);
  try {
    const before = await home.until(() => true);
    assert.deepEqual([before.wallet.available.amount, before.dailyBonus.claimable], ['0', true]);
    await client.mutate({ mutation: operations.ClaimDailyBonus });
    const claimed = await home.until(({ dailyBonus }) => !dailyBonus.claimable);
    assert.deepEqual([claimed.wallet.available.amount, claimed.dailyBonus.streak], ['10', 1]);
    await client.mutate({ mutation: operations.ClaimSignupBonus });
    await home.until(({ wallet }) => wallet.available.amount === '110');
    const asked = proxy.seen.map(({ asked: { operationName } }) => operationName);
    assert.deepEqual(asked, ['Home', 'ClaimDailyBonus', 'ClaimSignupBonus'], 'nothing was asked again');
  } finally {
    home.stop();
    await proxy.end();
    await server.end();
  }
});

test('what nobody waits for any more is not asked again', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let asked = 0;
  const lost = new ApolloLink(() => new Observable((observer) => {
    asked += 1;
    observer.error(new TypeError('The connection was lost.'));
  }));
  const link = askAgainLink().concat(lost);
  const waiting = ApolloLink.execute(link, { query: operations.Home }, { client: null }).subscribe(() => {});
  t.mock.timers.tick(1000);
  assert.equal(asked, 2, 'as long as somebody waits');
  waiting.unsubscribe();
  t.mock.timers.tick(60_000);
  assert.equal(asked, 2);
});

test('a document travels once, and then by its hash', { timeout: 60_000 }, async () => {
  const server = await startServer();
  try {
    const token = await server.token('bob');
    const requests = [];
    const http = new HttpLink({
      uri: server.url,
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
    await server.end();
  }
});
