"""The command `keras-transformer train`."""


def add_command(commands):
    """Adds `train` to the subparsers of the command line."""
    command = commands.add_parser(
        "train",
        help="train from a recipe",
        description="Trains as a recipe says and leaves a run folder.",
    )
    command.add_argument("recipe", metavar="RECIPE.yaml")
    command.add_argument("--output", required=True, metavar="RUN", help="the run folder to make")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="replace a value of the recipe; may be given more than once",
    )
    command.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    command.add_argument(
        "--overwrite", action="store_true", help="replace a run that is there, and nothing else"
    )
    command.set_defaults(command=_train)


def _train(options):
    from keras_transformer.training import Recipe, train

    recipe = Recipe.load(options.recipe, options.set)
    folder = train(
        recipe,
        options.output,
        resume=options.resume,
        overwrite=options.overwrite,
        recipe_file=options.recipe,
    )
    print(folder.path)
