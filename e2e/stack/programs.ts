// Makes sure that every program the tests run is there, so that no test has to wait for a build.
import { argocdProgram, controlPlanePrograms, helmProgram, kubectlProgram, natsServerProgram } from './binaries.ts';
import { redisServerProgram } from './redis-server.ts';

const report = (line: string) => console.log(`    ${line}`);

await natsServerProgram(report);
await controlPlanePrograms(report);
await kubectlProgram(report);
await helmProgram(report);
await argocdProgram(report);
// Few tests need it, and say so themselves where there is none.
await redisServerProgram(report).catch((error: Error) => report(error.message));
