"""Tables that every account had of its own, as three whole ones. `make demo-unshatter` shows them."""

from viewtail import Entity, MySQLTable

client = Entity("app.org{account_id:int}_client", key=["account_id", "client_id"])
invoice = Entity("app.org{account_id:int}_invoice", key=["account_id", "invoice_id"])
gateway = Entity("app.org{account_id:int}_gateway", key=["account_id", "gateway_id"])

views = [
    MySQLTable(
        "client",
        client,
        columns=["account_id", "client_id", "name", "email", "created_at"],
        indexes={"client_id_idx": ["client_id"]},
        auto_increment="client_id",
    ),
    MySQLTable(
        "invoice",
        invoice,
        columns=["account_id", "invoice_id", "client_id", "number", "amount", "status", "created_at"],
        indexes={"invoice_id_idx": ["invoice_id"], "account_client_idx": ["account_id", "client_id"]},
        auto_increment="invoice_id",
    ),
    MySQLTable(
        "gateway",
        gateway,
        columns=["account_id", "gateway_id", "invoice_id", "name", "is_enabled"],
        indexes={"gateway_id_idx": ["gateway_id"], "account_invoice_idx": ["account_id", "invoice_id"]},
        auto_increment="gateway_id",
    ),
]
