// The thread of password-strength.ts.
import { parentPort } from 'node:worker_threads';
import { ZxcvbnFactory } from '@zxcvbn-ts/core';
import { adjacencyGraphs, dictionary } from '@zxcvbn-ts/language-common';
import type { StrengthQuestion } from './password-strength.ts';

const estimator = new ZxcvbnFactory({ dictionary, graphs: adjacencyGraphs });

parentPort!.on('message', ({ password, words }: StrengthQuestion) => {
  const scoreOf = (text: string): number => estimator.check(text, [...words]).score;
  const lower = password.toLowerCase();
  // The estimator takes a repetition for random characters if one of them is a capital.
  parentPort!.postMessage(lower === password ? scoreOf(password) : Math.min(scoreOf(password), scoreOf(lower)));
});
