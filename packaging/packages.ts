// Builds the packages that people install (`make packages`) into dist/: @kellet/client, @kellet/device, @kellet/verify and the
// kubectl plugin. Prints the path of each file.
//
//   node packaging/packages.ts [client|device|verify|kubectl]... [--uri URL]   URL: where krew will find the plugin's archive
import { parseArgs } from 'node:util';
import { packPlugin } from './kubectl-plugin.ts';
import { packLibrary } from './npm-package.ts';
import { dist } from './paths.ts';

const { values, positionals } = parseArgs({ options: { uri: { type: 'string' } }, allowPositionals: true });
const known = ['client', 'device', 'verify', 'kubectl'];
const unknown = positionals.filter((name) => !known.includes(name));
if (unknown.length) throw new Error(`unknown package ${unknown.join(', ')}: one of ${known.join(', ')}`);
for (const name of positionals.length ? positionals : known) {
  const files = name === 'kubectl' ? Object.values(await packPlugin(dist, values.uri)) : [packLibrary(name, dist)];
  for (const file of files) process.stdout.write(`${file}\n`);
}
