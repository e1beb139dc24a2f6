"""The models that come with Treadle, loaded when somebody asks for one."""


def built_in_models() -> dict[str, type]:
    """Return the models by the names that settings and the command line may use."""
    from treadle.recsys.models import (
        context_aware_recommender,
        exlib_recommender,
        general_recommender,
        knowledge_aware_recommender,
        sequential_recommender,
    )

    found: dict[str, type] = {}
    packages = (
        general_recommender,
        sequential_recommender,
        context_aware_recommender,
        knowledge_aware_recommender,
        exlib_recommender,
    )
    for package in packages:
        found |= {name: getattr(package, name) for name in package.__all__}
    return found
