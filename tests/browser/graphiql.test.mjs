// The demo's GraphiQL in a real browser that can reach no host but this machine: the page renders under its policy, and
// a bonus is paid once. Needs LARGESSE_BIN, the path of the built binary, and Chromium on PATH. SCREENSHOTS may name a
// folder in which to keep the picture of the page.

import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { test } from 'node:test';
import { chromium } from 'playwright-core';
import { isExecutable, startDemo } from './demo.mjs';

const CHROMIUM_ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
];

function findChromium() {
  const folders = ['/usr/bin', ...(process.env.PATH ?? '').split(delimiter)];
  const found = folders.map((folder) => join(folder, 'chromium')).find(isExecutable);
  assert.ok(found, 'This test needs Chromium: install it, so that `chromium` is on PATH.');
  return found;
}

/** Opens a page that notes whatever must not happen on it. */
async function openPage(browser, origin) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const complaints = [];
  page.on('console', (message) => message.type() === 'error' && complaints.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => complaints.push(`exception: ${error.message}`));
  page.on('request', (request) => {
    const { protocol, origin: target } = new URL(request.url());
    if (protocol !== 'data:' && target !== origin) complaints.push(`request: ${request.url()}`);
  });
  await page.exposeFunction('noteViolation', (violation) => complaints.push(`policy: ${violation}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => {
      window.noteViolation(`${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await page.goto(`${origin}/`);
  return { page, complaints };
}

const editorText = (page, editor) =>
  page.locator(`${editor} .CodeMirror`).evaluate((node) => node.CodeMirror.getValue());

/** Opens an operation's tab. For an instant after that GraphiQL would still send the former tab's operation name. */
async function openTab(page, operation) {
  await page.getByRole('tab', { name: operation }).click();
  await page.waitForFunction(
    (expected) => document.querySelector('.graphiql-query-editor .CodeMirror').CodeMirror.operationName === expected,
    operation,
  );
}

/** Presses the execute button and gives back the operation's answer once the response pane shows it. */
async function execute(page, operation) {
  const answered = page.waitForResponse((response) => response.request().postDataJSON()?.operationName === operation);
  await page.getByRole('button', { name: /execute query/i }).click();
  const answer = await (await answered).json();
  await page.waitForFunction(
    (expected) => document.querySelector('.result-window .CodeMirror').CodeMirror.getValue() === expected,
    JSON.stringify(answer, null, 2),
  );
  return answer;
}

async function payBob(origin, token) {
  const input = { to: 'bob', amount: '1', currency: 'PTS', idempotencyKey: 'live' };
  const query = 'mutation ($input: TransferInput!) { transfer(input: $input) { userErrors { code } } }';
  const answer = await fetch(`${origin}/graphql`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` },
    body: JSON.stringify({ query, variables: { input } }),
  });
  assert.deepEqual(await answer.json(), { data: { transfer: { userErrors: [] } } });
}

test('GraphiQL claims the daily bonus once, offline and under its policy', { timeout: 120_000 }, async () => {
  const executablePath = findChromium();
  // Run last first, so that the folder goes when nothing writes into it any more.
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-browser-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(folder, (stop) => cleanups.unshift(stop));
    const browser = await chromium.launch({ executablePath, args: CHROMIUM_ARGS });
    cleanups.unshift(() => browser.close());

    const { page, complaints } = await openPage(browser, origin);
    const headers = '.graphiql-editor-tool .graphiql-editor:not(.hidden)';
    assert.match(await editorText(page, headers), /"Authorization": "Bearer /);
    await openTab(page, 'ClaimDailyBonus');
    assert.match(await editorText(page, headers), /"Authorization": "Bearer /);

    const first = await execute(page, 'ClaimDailyBonus');
    assert.equal(first.data.claimDailyBonus.claim.streak, 1);
    assert.equal(first.data.claimDailyBonus.claim.amount.amount, '10');

    const second = JSON.stringify(await execute(page, 'ClaimDailyBonus'));
    assert.match(second, /"(ALREADY_CLAIMED|COOLDOWN_ACTIVE)"/);

    // The live wallet: its state at once, and then what another tab's claim made of it.
    const shown = () => page.locator('.result-window .CodeMirror').evaluate((node) => node.CodeMirror.getValue());
    await openTab(page, 'WalletChanged');
    await page.getByRole('button', { name: /execute query/i }).click();
    await page.waitForFunction(
      () => /"entry": null/.test(document.querySelector('.result-window .CodeMirror').CodeMirror.getValue()),
    );
    assert.match(await shown(), /"amount": "110"/);
    const { members } = await (await fetch(`${origin}/graphiql/config.json`)).json();
    await payBob(origin, members[0].token);
    await page.waitForFunction(
      () => /"kind": "TRANSFER"/.test(document.querySelector('.result-window .CodeMirror').CodeMirror.getValue()),
    );
    assert.match(await shown(), /"amount": "109"/);
    await page.getByRole('button', { name: /stop query/i }).click();

    await page.screenshot({ path: join(process.env.SCREENSHOTS ?? folder, 'graphiql.png') });
    assert.deepEqual(complaints, []);
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});
