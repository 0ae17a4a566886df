// The libraries that run in browsers do not need Node.
import path from 'node:path';
import { expect } from 'chai';
import ts from 'typescript';

const root = path.dirname(import.meta.dirname);

describe('portability', () => {
  for (const entry of ['verify/src/index.ts', 'client/src/index.ts']) {
    it(`${entry} type-checks without Node`, function () {
      this.timeout(60_000);
      const program = ts.createProgram([path.join(root, entry)], {
        target: ts.ScriptTarget.ES2024,
        lib: ['lib.es2024.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'],
        module: ts.ModuleKind.NodeNext,
        moduleResolution: ts.ModuleResolutionKind.NodeNext,
        resolveJsonModule: true,
        allowImportingTsExtensions: true,
        skipLibCheck: true,
        strict: true,
        noEmit: true,
        types: [],
      });
      const problems = ts
        .getPreEmitDiagnostics(program)
        .map((problem) => ts.flattenDiagnosticMessageText(problem.messageText, '\n'));
      expect(problems).to.deep.equal([]);
      const sources = program.getSourceFiles().map(({ fileName }) => fileName);
      expect(sources.filter((name) => name.includes('/@types/node/') || name.endsWith('/cli.ts'))).to.deep.equal([]);
      expect(sources).to.include(path.join(root, entry));
    });
  }
});
