// Types that are generated as docs/clients.md says are strict: no warning, no `any`, and usage.ts compiles with them.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { folder, write } from './documented.mjs';

const path = (name) => fileURLToPath(new URL(name, import.meta.url));
const project = folder();

/** Runs one of the installed programs in the project: its exit code and all that it printed. */
const run = (program, ...args) =>
  new Promise((resolve) => {
    const bin = path(`node_modules/.bin/${program}`);
    const options = { cwd: project, env: { ...process.env, NO_COLOR: '1' } };
    execFile(process.execPath, [bin, ...args], options, (error, stdout, stderr) =>
      resolve({ code: error?.code ?? 0, printed: stdout + stderr }),
    );
  });

const compile = (...files) =>
  run('tsc', '--noEmit', '--strict', '--exactOptionalPropertyTypes', '--noImplicitReturns', '--skipLibCheck', '--target', 'es2022',
    '--module', 'esnext', '--moduleResolution', 'bundler', ...files);

before(async () => {
  write(project, ['codegen.ts']);
  await cp(path('../../schema.graphql'), join(project, 'schema.graphql'));
  await cp(path('../../operations'), join(project, 'operations'), { recursive: true });
  await cp(path('usage.ts'), join(project, 'usage.ts'));
  const { code, printed } = await run('graphql-codegen', '--config', 'codegen.ts');
  assert.equal(code, 0, printed);
  assert.doesNotMatch(printed, /(^|[^a-z])(warn(ing)?|deprecat|is skipped)/i);
});

test('nothing that is generated is any', async () => {
  const text = await readFile(join(project, 'gql/graphql.ts'), 'utf8');
  assert.match(text, /export type TransferMutation /);
  assert.doesNotMatch(text, /\bany\b/);
});

test('a strict client compiles, and would not with loose types', async () => {
  const strict = await compile('usage.ts');
  assert.equal(strict.code, 0, strict.printed);
  const types = join(project, 'gql/graphql.ts');
  const loose = (await readFile(types, 'utf8')).replaceAll('amount: string', 'amount: any');
  await writeFile(types, loose);
  const { code, printed } = await compile('usage.ts');
  assert.notEqual(code, 0);
  assert.match(printed, /usage\.ts.*(TS2578|TS2322)/);
});

test('the cache learns which types a refusal has', async () => {
  const { possibleTypes } = JSON.parse(await readFile(join(project, 'gql/possible-types.json'), 'utf8'));
  assert.deepEqual(possibleTypes.UserError, ['AlreadyClaimedError', 'InsufficientFundsError', 'PlainError']);
});
