// The thread of password-strength.ts.
import { parentPort } from 'node:worker_threads';
import { ZxcvbnFactory } from '@zxcvbn-ts/core';
import { adjacencyGraphs, dictionary } from '@zxcvbn-ts/language-common';
import type { StrengthQuestion } from './password-strength.ts';

const estimator = new ZxcvbnFactory({ dictionary, graphs: adjacencyGraphs });

parentPort!.on('message', ({ password, words }: StrengthQuestion) => {
  parentPort!.postMessage(estimator.check(password, [...words]).score);
});
