// The build takes style sheets that a module imports.
declare module '*.css';
