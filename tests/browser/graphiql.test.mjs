// The demo's GraphiQL in a real browser that can reach no host but this machine: the page renders under its policy, and
// a bonus is paid once. Needs LARGESSE_BIN, the path of the built binary, and Chromium on PATH. SCREENSHOTS may name a
// folder in which to keep the picture of the page.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { chromium } from 'playwright-core';

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

function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function findBinary() {
  const binary = process.env.LARGESSE_BIN;
  assert.ok(binary, 'Set LARGESSE_BIN to the path of the built largesse binary.');
  assert.ok(isExecutable(binary), `LARGESSE_BIN is ${binary}, which is not an executable file.`);
  return binary;
}

function findChromium() {
  const folders = ['/usr/bin', ...(process.env.PATH ?? '').split(delimiter)];
  const found = folders.map((folder) => join(folder, 'chromium')).find(isExecutable);
  assert.ok(found, 'This test needs Chromium: install it, so that `chromium` is on PATH.');
  return found;
}

async function startDemo(binary, folder, after) {
  const args = ['demo', '--listen', '127.0.0.1:0', '--database', join(folder, 'demo.db'), '--reset'];
  const demo = spawn(binary, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(demo, 'exit');
  after(async () => {
    demo.kill('SIGKILL');
    await ended;
  });
  return readAddress(demo.stdout);
}

async function readAddress(stdout) {
  const lines = createInterface({ input: stdout, signal: AbortSignal.timeout(30_000) });
  for await (const line of lines) {
    const [address] = line.match(/http:\/\/127\.0\.0\.1:\d+/) ?? [];
    if (address) {
      // The rest is read and dropped, lest a full pipe stop the server.
      stdout.resume();
      return address;
    }
  }
  throw new Error('The demo ended, or 30 seconds passed, before it printed its address.');
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

test('GraphiQL claims the daily bonus once, offline and under its policy', { timeout: 120_000 }, async () => {
  const binary = findBinary();
  const executablePath = findChromium();
  // Run last first, so that the folder goes when nothing writes into it any more.
  const cleanups = [];
  try {
    const folder = await mkdtemp(join(tmpdir(), 'largesse-browser-'));
    cleanups.unshift(() => rm(folder, { recursive: true, force: true }));
    const origin = await startDemo(binary, folder, (stop) => cleanups.unshift(stop));
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

    await page.screenshot({ path: join(process.env.SCREENSHOTS ?? folder, 'graphiql.png') });
    assert.deepEqual(complaints, []);
  } finally {
    for (const cleanup of cleanups) await cleanup().catch(console.error);
  }
});
