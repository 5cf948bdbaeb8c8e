// A wallet that changes under the eyes of its owner: graphql-ws, Apollo's and urql's subscriptions as docs/clients.md sets them
// up, against a running server. What moves the value is asked over HTTP, by nobody whom the client knows.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { parse } from 'graphql';
import { WebSocket } from 'ws';
import { documented } from './documented.mjs';
import { operations, possibleTypes } from './flows.mjs';
import { startProxy } from './lossy-proxy.mjs';
import { post, startServer } from './server.mjs';

const { connect } = await documented('live.mjs');
const apollo = { ...(await documented('apollo.mjs')), ...(await documented('live-apollo.mjs')) };
const urql = { ...(await documented('urql.mjs')), ...(await documented('live-urql.mjs')) };

const WALLET_CHANGED = `subscription {
  walletChanged {
    wallet { id version available { amount currency } }
    entry { id amount { amount } counterparty { id memberId } }
  }
}`;
const SEND = `mutation Send($input: TransferInput!) {
  transfer(input: $input) { entry { id } wallet { version } userErrors { code } }
}`;

/** The values that have come so far, and a wait for one of a kind. */
function listen() {
  const heard = [];
  const until = async (what, condition) => {
    const deadline = Date.now() + 20_000;
    for (;;) {
      const found = heard.find(condition);
      if (found) return found;
      assert.ok(Date.now() < deadline, `${what} did not come: ${JSON.stringify(heard)}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  return { heard, until };
}

describe('a live wallet', { concurrency: true, timeout: 60_000 }, () => {
  let server, socketUrl;
  before(async () => {
    server = await startServer();
    socketUrl = server.url.replace('http', 'ws');
    await post(server.url, await server.token('bob'), '{ viewer { id } }');
  });
  after(() => server.end());

  /** A member with 100 points, and a way to send 30 of them. */
  async function member(name) {
    const token = await server.token(name);
    await post(server.url, token, 'mutation { claimSignupBonus { claim { id } } }');
    const input = { to: 'bob', amount: '30', currency: 'PTS', idempotencyKey: `${name}-1` };
    const send = async () => {
      const { data } = await post(server.url, token, SEND, { input });
      return data.transfer;
    };
    const live = { url: socketUrl, token: () => token, webSocketImpl: WebSocket };
    return { send, live, token: () => token };
  }

  const isState = (amount) => ({ walletChanged: { wallet } }) => wallet.available.amount === amount;

  test('graphql-ws tells the state first, then the movement', async () => {
    const { send, live } = await member('ada');
    const socket = connect(live);
    const { heard, until } = listen();
    const stop = socket.subscribe(
      { query: WALLET_CHANGED },
      {
        next: ({ data, errors }) => (errors ? assert.fail(errors[0].message) : heard.push(data)),
        error: assert.fail,
        complete() {},
      },
    );
    try {
      const first = await until('the state', () => true);
      assert.deepEqual([first.walletChanged.wallet.available.amount, first.walletChanged.entry], ['100', null]);
      const sent = await send();
      const { walletChanged } = await until('the movement', isState('70'));
      assert.equal(walletChanged.wallet.version, sent.wallet.version);
      assert.equal(walletChanged.entry.id, sent.entry.id);
      assert.equal(walletChanged.entry.counterparty.memberId, 'bob');
    } finally {
      stop();
      await socket.dispose();
    }
  });

  test('a token that is not good opens nothing', async () => {
    const { live } = await member('eve');
    const socket = connect({ ...live, token: () => 'not.a.token', retryAttempts: 0 });
    const failed = new Promise((resolve, reject) =>
      socket.subscribe({ query: WALLET_CHANGED }, { next: reject, error: resolve, complete: reject }));
    const { code } = await failed;
    assert.ok([4401, 4403].includes(code), `closed with ${code}`);
    await socket.dispose();
  });

  test('a socket whose token expires is followed by one with a newer token', async () => {
    const { send, live } = await member('max');
    const [old, next] = [await server.token('max', '2s'), live.token()];
    const opened = [];
    const token = () => (opened.length === 0 ? old : next);
    const socket = connect({ ...live, token, on: { connected: () => opened.push(Date.now()) } });
    const { heard, until } = listen();
    const sink = { next: ({ data }) => heard.push(data), error: assert.fail, complete() {} };
    const stop = socket.subscribe({ query: WALLET_CHANGED }, sink);
    try {
      await until('the state', () => true);
      await until('the state again, over another socket', () => opened.length === 2 && heard.length >= 2);
      await send();
      await until('the movement', isState('70'));
    } finally {
      stop();
      await socket.dispose();
    }
  });

  test("Apollo's page shows the new state without asking", async () => {
    const { send, live, token } = await member('lin');
    const proxy = await startProxy(server.url);
    const client = apollo.makeClient({ url: proxy.url, token, possibleTypes, live: apollo.live(live) });
    const { heard, until } = listen();
    const page = client.watchQuery({ query: operations.Home })
      .subscribe(({ data }) => data?.viewer && heard.push({ walletChanged: data.viewer }));
    const changes = client.subscribe({ query: parse(WALLET_CHANGED) }).subscribe(() => {});
    try {
      await until('the page', isState('100'));
      await send();
      await until('the new state', isState('70'));
      assert.deepEqual(proxy.seen.map(({ asked }) => asked.operationName), ['Home']);
    } finally {
      page.unsubscribe();
      changes.unsubscribe();
      client.stop();
      await proxy.end();
    }
  });

  test('urql hears the state first, then the movement', async () => {
    const { send, live, token } = await member('una');
    const client = urql.makeClient({ url: server.url, token, live: urql.live(live) });
    const { heard, until } = listen();
    const changes = client.subscription(parse(WALLET_CHANGED), {})
      .subscribe(({ data, error }) => (error ? assert.fail(error) : heard.push(data)));
    try {
      await until('the state', isState('100'));
      const sent = await send();
      const { walletChanged } = await until('the movement', isState('70'));
      assert.deepEqual([walletChanged.wallet.version, walletChanged.entry.id], [sent.wallet.version, sent.entry.id]);
    } finally {
      changes.unsubscribe();
    }
  });
});
