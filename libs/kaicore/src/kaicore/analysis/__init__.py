"""What is built on the rules and the ledger to answer questions: simulation before, inquiry afterwards."""
