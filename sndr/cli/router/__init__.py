"""Thin verbs over the doors of the router."""

from __future__ import annotations

from sndr.cli.main import LazyGroup

__all__ = ["router"]

router = LazyGroup(
    "router",
    help="Serve models behind one address and change their routes live.",
    lazy={
        "serve": ("sndr.cli.router.serve:serve", "Run the gateway in the foreground."),
        "check": ("sndr.cli.router.check:check", "Judge a boot file and print what it means."),
        "status": ("sndr.cli.router.online:status", "Show the gateway, its tiers and its routes as they are now."),
        "models": ("sndr.cli.router.online:models", "List the aliases that the credential may use."),
        "quiesce": ("sndr.cli.router.online:quiesce", "Stop new requests to a tier; running ones go on."),
        "drain": ("sndr.cli.router.online:drain", "Wait until a quiesced tier is idle; nothing is ever cut."),
        "readmit": ("sndr.cli.router.online:readmit", "Let a tier take requests again, after a fresh probe."),
        "swap": ("sndr.cli.router.change:swap", "Point aliases at other tiers: shown, asked, done."),
        "replace": ("sndr.cli.router.change:replace", "Replace what a tier is, live: shown, asked, watched."),
        "preview": ("sndr.cli.router.routes:preview", "Show what a route change would do."),
        "apply": ("sndr.cli.router.routes:apply", "Do what a preview said."),
        "resume": ("sndr.cli.router.routes:resume", "Go on with the held change."),
        "cancel": ("sndr.cli.router.routes:cancel", "Give the held change up."),
        "rollback": ("sndr.cli.router.routes:rollback", "Make the previous routes current again."),
        "recover": ("sndr.cli.router.routes:recover", "Go on after a failure, in the way that you choose."),
        "hold": ("sndr.cli.router.routes:hold", "The holds of route changes."),
        "drain-wait": ("sndr.cli.router.routes:drain_wait", "Wait until the held tiers are idle."),
        "init": ("sndr.cli.router.offline:init", "Create the authority file, or bind it to a changed boot file."),
        "inspect": ("sndr.cli.router.offline:inspect", "Print what is visible of the authority, without its lock."),
        "fsck": ("sndr.cli.router.offline:fsck", "Check the authority's files and name every fault."),
        "backup": ("sndr.cli.router.offline:backup", "Copy the usage ledger and the authority into a directory."),
        "coverage": (
            "sndr.cli.router.usage:coverage",
            "How requests to family aliases were decided, and how fast each tier was.",
        ),
        "usage": ("sndr.cli.router.usage:usage", "Reports over the usage ledger, and its care."),
        "synthetic-serve": (
            "sndr.cli.router.synthetic:synthetic_serve",
            "A small model server for tests and demonstrations.",
        ),
    },
)
