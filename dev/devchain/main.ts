// Devchain: a local development chain behind the HTTP APIs of ARC (the transaction processor) and ChainTracks v2 (the
// header source). Its headers, proof of work, transactions, signatures, Merkle paths and callbacks are real; the network
// around them is not. Settings: config.ts. Once it listens it prints {"devchain":"http://127.0.0.1:PORT"} on stdout.
import { hash } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { useSha256 } from '@kellet/verify';
import { startBlockTimer } from './block-timer.ts';
import { CallbackSender } from './callback-sender.ts';
import { readConfig } from './config.ts';
import { Devchain } from './devchain.ts';
import type { DevchainEvent } from './events.ts';
import { openJournal } from './journal.ts';
import { createDevchainServer } from './server.ts';

useSha256((data) => hash('sha256', data, 'buffer'));

const config = readConfig(process.argv.slice(2), process.env);
const { journal, entries } = openJournal<DevchainEvent>(config.directory);
const devchain = new Devchain(journal, entries, () => performance.now(), config.headers);
const http = createDevchainServer(devchain, config.arcToken);
const callbacks = new CallbackSender({
  queue: devchain.callbacks,
  faults: () => devchain.faults.current,
  secret: config.callbackSecret,
  intervalMilliseconds: config.callbackMilliseconds,
  merklePath: (blockHash, txid) => devchain.ledger.chain.bump(devchain.ledger.chain.block(blockHash)!, txid),
  settle: (ids) => devchain.settle(ids),
  log: (message) => console.error(JSON.stringify({ level: 'warn', message })),
});

http.server.listen(config.port, '127.0.0.1', () => {
  const stopMining = startBlockTimer(devchain, config.blockMilliseconds);
  callbacks.start();
  const { port } = http.server.address() as AddressInfo;
  process.stdout.write(`${JSON.stringify({ devchain: `http://127.0.0.1:${port}` })}\n`);

  let stopping = false;
  const stop = async () => {
    if (stopping) return;
    stopping = true;
    stopMining();
    await Promise.all([http.close(), callbacks.stop()]);
    devchain.close();
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      stop().then(
        () => process.exit(0),
        (error: unknown) => {
          console.error(error);
          process.exit(1);
        },
      );
    });
  }
});
