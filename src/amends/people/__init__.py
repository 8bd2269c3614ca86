"""What a person does: approvals, doubts, rollback plans, reconciliation, budgets."""
