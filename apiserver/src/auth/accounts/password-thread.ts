// The threads of passwords.ts: hash one password, or compare one with hashes.
import { parentPort } from 'node:worker_threads';
import { hashSync, verifySync } from '@node-rs/argon2';
import { runInBackground } from '../../platform/concurrency/thread-pool.ts';
import type { PasswordAnswer, PasswordQuestion } from './passwords.ts';

runInBackground();

function answer(question: PasswordQuestion): PasswordAnswer {
  const { password } = question;
  if ('parameters' in question) return { hash: hashSync(password, question.parameters) };
  return { matching: question.hashes.flatMap((hash, index) => (verifySync(hash, password) ? [index] : [])) };
}

parentPort!.on('message', (question: PasswordQuestion) => parentPort!.postMessage(answer(question)));
