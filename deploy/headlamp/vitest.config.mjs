import { defineConfig, mergeConfig } from 'vitest/config';
import headlamp from '@kinvolk/headlamp-plugin/config/vite.config.mjs';

// Headlamp's own code is run by these tests, too; what it takes from a bundler comes from node.
export default mergeConfig(headlamp, defineConfig({
  resolve: { alias: [{ find: /^unenv\/node\/process$/, replacement: 'node:process' }] },
}));
