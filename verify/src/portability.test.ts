import { expect } from 'chai';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

describe('portability', () => {
  it('the library type-checks without Node: only cli.ts needs it', function () {
    this.timeout(60_000);
    const entry = fileURLToPath(new URL('index.ts', import.meta.url));
    const program = ts.createProgram([entry], {
      target: ts.ScriptTarget.ES2024,
      lib: ['lib.es2024.d.ts', 'lib.dom.d.ts'],
      module: ts.ModuleKind.NodeNext,
      moduleResolution: ts.ModuleResolutionKind.NodeNext,
      resolveJsonModule: true,
      allowImportingTsExtensions: true,
      skipLibCheck: true,
      strict: true,
      noEmit: true,
      types: [],
    });
    const problems = ts.getPreEmitDiagnostics(program).map((d) => ts.flattenDiagnosticMessageText(d.messageText, '\n'));
    expect(problems).to.deep.equal([]);
    const sources = program.getSourceFiles().map((file) => file.fileName);
    expect(sources.filter((name) => name.includes('/@types/node/') || name.endsWith('/cli.ts'))).to.deep.equal([]);
    expect(sources.filter((name) => name.endsWith('/verify/src/bundle.ts'))).to.have.length(1);
  });
});
