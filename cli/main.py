"""The `raylane` command: each subcommand in a file of its own."""

import typer

from cli.apply import apply
from cli.bench import bench
from cli.calibrate import calibrate
from cli.controls import controls, hold, pin, release
from cli.cordon import cordon
from cli.costs import costs
from cli.doctor import doctor
from cli.down import down
from cli.drain import drain
from cli.explain import explain
from cli.gauntlet import gauntlet
from cli.key import key
from cli.rehearse import rehearse
from cli.replay import replay_log
from cli.shadow import shadow
from cli.simulate import simulate
from cli.spec import spec
from cli.status import status
from cli.top import top
from cli.traffic import traffic
from cli.tune import tune
from cli.up import up
from cli.why import why

app = typer.Typer(
    help="raylane: length-laned, queue-aware, explainable serving of open-weight LLMs on Ray Serve and vLLM.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(up)
app.command()(down)
app.command()(status)
app.command()(top)
app.command()(why)
app.command()(explain)
app.command()(apply)
app.command()(hold)
app.command()(pin)
app.command()(release)
app.command()(controls)
app.command()(cordon)
app.command()(drain)
app.command()(key)
app.command()(doctor)
app.command()(bench)
app.command()(simulate)
app.command()(gauntlet)
app.command()(tune)
app.command()(traffic)
app.command()(costs)
app.command()(calibrate)
app.command()(rehearse)
app.command("replay")(replay_log)
app.add_typer(shadow, name="shadow")
app.add_typer(spec, name="spec")

if __name__ == "__main__":
    app()
