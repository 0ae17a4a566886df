// The lint gate: type-checked rules, no floating promises, and the import boundaries between folders. Those within apiserver/src
// are in scripts/layers.ts.
import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import importSort from 'eslint-plugin-simple-import-sort';
import tseslint from 'typescript-eslint';
import { plugin } from './scripts/layers.ts';

/** @type {Record<string, string[]>} What each folder may import of ours; everything else of ours is refused (docs/architecture.md). */
const mayImport = {
  proto: [],
  crds: [],
  kubernetes: ['crds'],
  verify: [],
  client: [],
  device: [],
  dashboard: ['client'],
  apiserver: ['proto', 'crds', 'kubernetes', 'verify', 'dashboard'],
  operator: ['proto', 'crds', 'kubernetes'],
  kubectl: ['proto', 'crds', 'kubernetes'],
  dev: ['crds', 'kubernetes', 'verify', 'client', 'device', 'dashboard'],
  e2e: [
    'proto',
    'crds',
    'kubernetes',
    'verify',
    'client',
    'device',
    'apiserver',
    'operator',
    'kubectl',
    'dev',
    'dashboard',
  ],
  bench: ['proto', 'crds', 'kubernetes', 'verify', 'apiserver', 'operator', 'dev'],
};
const folders = Object.keys(mayImport);

const boundaries = folders.map((folder) => {
  const refused = folders.filter((other) => other !== folder && !mayImport[folder].includes(other));
  return {
    files: [`${folder}/**/*.{ts,tsx}`],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          patterns: refused.map((other) => ({
            regex: `(^@kellet/${other}(/|$)|^(\\.\\./)+${other}/)`,
            message: `${folder}/ must not import ${other}/`,
          })),
        },
      ],
    },
  };
});

export default defineConfig(
  {
    ignores: [
      '**/node_modules/**',
      '**/dist/**',
      'proto/gen/**',
      'crds/src/generated/**',
      'client/src/generated/**',
      'device/src/generated/**',
      '.kellet/**',
    ],
  },
  js.configs.recommended,
  tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ['eslint.config.js'] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    plugins: { 'import-sort': importSort },
    rules: {
      // Modules of Node, packages, ours; each in the order of their names, in one block.
      'import-sort/imports': ['error', { groups: [['^\\u0000', '^node:', '^@?\\w', '^', '^\\.\\.', '^\\.']] }],
      'no-duplicate-imports': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true, allowBoolean: true }],
      eqeqeq: ['error', 'always'],
      'max-params': ['error', { max: 6 }],
      'no-restricted-syntax': [
        'error',
        { selector: 'PrivateIdentifier', message: 'Use `private`, as everywhere else, instead of a #name.' },
      ],
      'no-console': 'error',
    },
  },
  ...boundaries,
  {
    // Tests may import anything, and so may what runs them: e2e/ is nothing but tests.
    files: ['**/*.ts'],
    ignores: ['**/*.test.ts', '**/testing/**', 'e2e/**', 'scripts/gate.ts', 'scripts/mocha-reporter.ts'],
    plugins: { kellet: plugin },
    rules: { 'kellet/layers': 'error', 'kellet/test-helpers': 'error' },
  },
  {
    // Commands, tests and tools talk to a terminal.
    files: ['**/cli.ts', '**/main.ts', 'scripts/**', 'dev/**', 'e2e/**', 'bench/**'],
    rules: { 'no-console': 'off' },
  },
  {
    // chai's assertions are expressions.
    files: ['**/*.test.ts'],
    rules: { '@typescript-eslint/no-unused-expressions': 'off' },
  },
);
