"""What people do: decide approvals, settle doubts, plan rollbacks, reconcile, and read budgets."""
